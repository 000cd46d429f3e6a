"""The page about a run, in Chromium: what a reader sees and does, and that no text of an agent
runs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from hyperruntime.cli import main
from hyperruntime.loop.run_files.layout import Layout
from tests.browser.conftest import OPEN_ALL, Browser
from tests.doubles.shown_runs import loop_run, plain, rollout_run
from tests.doubles.study_runs import write_run

PANEL = "document.querySelector('.panel')"
PWN = "window.pwned = (window.pwned || 0) + 1"
# Ways to run a script, or to reach the network, by text that becomes part of a page.
HOSTILE = (
    "<script>{}</script>",
    "</script><script>{}</script>",
    "</style><script>{}</script>",
    "<!--<script>{}</script>-->",
    "--><script>{}</script>",
    "<img src=x onerror='{}'>",
    "<svg onload='{}'>",
    "<svg><script>{}</script></svg>",
    "<body onload='{}'>",
    "<iframe srcdoc='<script>parent.{}</script>'></iframe>",
    "<iframe src='javascript:{}'></iframe>",
    "<a href='javascript:{}' autofocus>x</a>",
    "<input autofocus onfocus='{}'>",
    "<details open ontoggle='{}'>x</details>",
    "<video><source onerror='{}'></video>",
    "<math><mi xlink:href='javascript:{}'>x</mi></math>",
    '"><script>{}</script>',
    "'-({})-'",
    "`${{{}}}`",
    "\\u003cscript\\u003e{}\\u003c/script\\u003e",
    "&lt;script&gt;{}&lt;/script&gt;",
    "{{{{{}}}}}",
    "\u2028{}\u2029",
    "<meta http-equiv=refresh content='0;javascript:{}'>",
    "<object data='javascript:{}'></object>",
    "<embed src='javascript:{}'>",
    "<base href='javascript:{}//'>",
    "<form action='javascript:{}'><button autofocus>x</button></form>",
    "<link rel=stylesheet href='javascript:{}'>",
    "<style>@import 'javascript:{}';</style>",
    "]]><script>{}</script>",
    "<template><script>{}</script></template>",
    "<marquee onstart='{}'>x</marquee>",
    "<x onanimationstart='{}' style='animation-name:a'>x</x>",
    "%3Cscript%3E{}%3C/script%3E",
    '__proto__"]}}</script><script>{}</script>',
    "<noscript><img src=x onerror='{}'></noscript>",
    "\x00<script>{}</script>",
    "<scr\x00ipt>{}</script>",
    "+ADw-script+AD4-{}+ADw-/script+AD4-",
)


def hostile_texts() -> list[str]:
    """Return the texts; each says that it ran in ``window.pwned``."""
    return [one.replace("{{", "{").replace("}}", "}").replace("{}", PWN) for one in HOSTILE]


def page_of(*words: str | Path) -> str:
    out = Path(words[0]) / "page.html"
    assert main(["report", *map(str, words), "-o", str(out)]) == 0
    return out.as_uri()


def wait(browser: Browser, script: str) -> None:
    WebDriverWait(browser.driver, 60).until(lambda _: browser.run(f"return {script}"))


def press(browser: Browser, key: str, text: str = "") -> None:
    """Press a key in the page, then type a text where the focus is."""
    browser.driver.find_element(By.TAG_NAME, "body").send_keys(key)
    press_focused(browser, *text)


def press_focused(browser: Browser, *keys: str) -> None:
    """Press keys where the focus is, one after another."""
    for key in keys:
        browser.driver.switch_to.active_element.send_keys(key)


def test_a_reader_finds_a_generation_and_opens_its_change(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(loop_run(tmp_path / "generate_1", 300)))
    assert "300" in browser.run("return document.querySelector('.tiles').innerText")
    assert browser.run("return document.querySelectorAll('canvas').length") == 2
    assert browser.run("return document.querySelectorAll('.row').length") < 60
    press(browser, "/", "exit code")
    wait(
        browser,
        "document.querySelectorAll('.row').length && document.body.innerText.includes('43 of 300')",
    )
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.run("state.table.find.value = ''; state.table.find.dispatchEvent(new Event('input'))")
    (
        browser.driver.find_element(
            By.XPATH, "//div[@class='head']/button[starts-with(., 'generation')]"
        )
    ).click()
    press(browser, "j", "j")
    wait(browser, "document.querySelector('pre.diff .added') !== null")
    shown = browser.run("return document.querySelector('.panel').innerText")
    assert shown.startswith("Generation 1:")
    assert "+new 1" in shown
    assert browser.run("return document.querySelectorAll('.panel img')[0].naturalWidth") > 0
    assert browser.run("return [...document.querySelectorAll('.panel details')].find(d => "
                       "d.querySelector('summary').textContent.startsWith('Call of bash')).open") is False  # fmt: skip
    press(browser, Keys.ESCAPE)
    wait(browser, "document.querySelector('.panel').hidden")


def rows(browser: Browser, count: int) -> list[str]:
    """Wait until the table has so many rows, and return what their first cells say."""
    wait(browser, f"document.querySelector('.bar .hint').innerText.startsWith('{count} of ')")
    made: list[str] = browser.run(
        "return [...document.querySelectorAll('.row')].map(one => one.firstChild.innerText)"
    )
    assert len(made) == count
    return made


def type_into(browser: Browser, label: str, text: str) -> None:
    """Go forward with the Tab key to the control with this label, and type."""
    for _ in range(30):
        if browser.driver.switch_to.active_element.accessible_name == label:
            break
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    focused = browser.driver.switch_to.active_element
    assert focused.accessible_name == label
    focused.send_keys(text)


def test_each_filter_of_generations_leaves_its_rows_by_keyboard_alone(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 20)
    made = [json.loads(line) for line in Layout(run_dir).journal.read_text().splitlines()]
    scores = {str(one["current_genid"]): one["score"] for one in made if one["score"] is not None}
    failed = [str(one["current_genid"]) for one in made if one["score"] is None]
    ranked = sorted(scores, key=lambda name: -scores[name])
    browser.open(page_of(run_dir))
    assert rows(browser, 20) == [*ranked, *failed]

    press(browser, "/", "exit code")
    assert rows(browser, len(failed)) == failed == ["3", "10", "17"]
    press_focused(browser, Keys.ENTER)  # from the search into the table
    for key, name in (
        ("j", "3"),
        ("j", "10"),
        (Keys.ARROW_DOWN, "17"),
        ("k", "10"),
        (Keys.ARROW_UP, "3"),
    ):
        press_focused(browser, key)
        wait(browser, f"{PANEL}.innerText.startsWith('Generation {name}: agent')")
    press_focused(browser, "/")
    type_into(browser, "failures", Keys.ARROW_DOWN)
    assert rows(browser, 0) == []  # both filters count
    type_into(browser, "clear", " ")
    assert rows(browser, 20) == [*ranked, *failed]
    assert browser.run("return state.table.find.value") == ""

    press(browser, "/")
    type_into(browser, "failures", Keys.ARROW_DOWN * 2)
    assert rows(browser, len(failed)) == failed
    press_focused(browser, Keys.ARROW_UP)
    assert rows(browser, len(ranked)) == ranked

    middle = len(ranked) // 2
    type_into(browser, "least score", f"{scores[ranked[middle]] + 0.004:.6f}")
    above = rows(browser, sum(score >= scores[ranked[middle]] + 0.004 for score in scores.values()))
    assert ranked[middle] not in above
    assert above == ranked[: len(above)]
    browser.run("document.querySelector('select[aria-label=score]').focus()")
    # circle_packing train: each generation has 0.01 more there
    press_focused(browser, Keys.ARROW_DOWN)
    trained = rows(
        browser, sum(score + 0.01 >= scores[ranked[middle]] + 0.004 for score in scores.values())
    )
    assert ranked[middle] in trained
    assert trained == ranked[: len(trained)]
    type_into(browser, "clear", Keys.ENTER)
    assert rows(browser, 20) == [*ranked, *failed]


def test_each_filter_of_trajectories_leaves_its_rows_by_keyboard_alone(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = rollout_run(tmp_path / "rollout_1", 5, 4)
    made = [json.loads(line) for line in (run_dir / "trajectories.jsonl").read_text().splitlines()]
    rewards = {one["id"]: one["reward"] for one in made if one["reward"] is not None}
    ranked = sorted(rewards, key=lambda name: -rewards[name])
    failed = [f"item {item}/3" for item in range(5)]
    browser.open(page_of(run_dir))
    assert rows(browser, 20) == [*ranked, *failed]

    press(browser, "/", "ITEM 2")
    group = [name for name in ranked if name.startswith("item 2/")]
    assert rows(browser, 4) == [*group, "item 2/3"]
    press_focused(browser, Keys.ENTER)
    press_focused(browser, "j", "j")
    wait(browser, f"{PANEL}.innerText.startsWith('Trajectory {group[1]}:')")
    press_focused(browser, Keys.ESCAPE)
    wait(browser, f"{PANEL}.hidden")
    press(browser, "/")
    type_into(browser, "clear", " ")
    press(browser, "/", "nodelost")
    assert rows(browser, 5) == failed
    type_into(browser, "failures", Keys.ARROW_DOWN)
    assert rows(browser, 0) == []


def test_the_lineage_zooms_pans_and_opens_a_generation(browser: Browser, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    browser.open(page_of(loop_run(tmp_path / "generate_1", 50)))
    chart = browser.run("return state.lineage.over")
    browser.run("arguments[0].scrollIntoView()", chart)
    scale = "return [state.lineage.scales.x.min, state.lineage.scales.x.max]"
    full = browser.run(scale)
    ActionChains(browser.driver).scroll_from_origin(
        ScrollOrigin.from_element(chart), 0, -120
    ).perform()
    wait(
        browser,
        f"state.lineage.scales.x.max - state.lineage.scales.x.min < {full[1] - full[0] - 1}",
    )
    zoomed = browser.run(scale)
    ActionChains(browser.driver).drag_and_drop_by_offset(chart, 60, 0).perform()
    wait(browser, f"state.lineage.scales.x.min < {zoomed[0] - 0.5}")
    kept = browser.run(scale)
    browser.run("charts(true)")  # as a live page does for each news
    assert browser.run(scale) == pytest.approx(kept)
    chart = browser.run("return state.lineage.over")
    corner = browser.run(
        "return [20 - arguments[0].clientWidth / 2, 20 - arguments[0].clientHeight / 2]", chart
    )
    ActionChains(browser.driver).move_to_element_with_offset(
        chart, *map(round, corner)
    ).double_click().perform()
    wait(browser, f"Math.abs(state.lineage.scales.x.max - {full[1]}) < 0.01")
    at = browser.run(
        "const u = state.lineage; return [u.valToPos(20, 'x'), u.valToPos(runs[0].score[20], 'y')]"
    )
    box = browser.run(
        "const b = arguments[0].getBoundingClientRect(); return [b.width, b.height]", chart
    )
    offset = (round(at[0] - box[0] / 2), round(at[1] - box[1] / 2))
    ActionChains(browser.driver).move_to_element_with_offset(chart, *offset).perform()
    wait(browser, "places.hint.textContent.startsWith('20 ')")  # a click opens what the hint names
    ActionChains(browser.driver).click().perform()
    wait(browser, f"{PANEL}.innerText.startsWith('Generation 20:')")
    browser.driver.find_element(By.XPATH, "//button[.='by time']").click()
    wait(browser, "state.byTime && state.lineage.scales.x.min > 1e9")


def test_the_lineage_zooms_and_pans_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(loop_run(tmp_path / "generate_1", 50)))
    scale = "return [state.lineage.scales.x.min, state.lineage.scales.x.max]"
    full = browser.run(scale)
    browser.run("document.querySelector('select[aria-label=score]').focus()")
    type_into(browser, "zoom in, lineage", Keys.ENTER)
    wait(
        browser,
        f"state.lineage.scales.x.max < {full[1] - 1} && state.lineage.scales.x.min > {full[0] + 1}",
    )
    closer = browser.run(scale)
    type_into(browser, "to the right, lineage", " ")
    wait(browser, f"state.lineage.scales.x.min > {closer[0] + 1}")
    type_into(browser, "show all, lineage", Keys.ENTER)
    wait(browser, f"Math.abs(state.lineage.scales.x.max - {full[1]}) < 0.01")


def test_two_fingers_zoom_the_lineage_and_one_pans_it(browser: Browser, tmp_path: Path) -> None:
    browser.view(width=390)
    browser.open(page_of(loop_run(tmp_path / "generate_1", 50)))
    chart = browser.run(
        "const over = state.lineage.over; over.scrollIntoView({ block: 'center' }); return over"
    )
    assert browser.run("return getComputedStyle(arguments[0]).touchAction", chart) == "none"
    assert "two fingers: zoom" in browser.run("return places.hint.textContent")
    left, top, wide = browser.run(
        "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.width]", chart
    )

    def fingers(kind: str, *shares: float) -> None:
        points = [
            {"x": left + share * wide, "y": top + 60, "id": n} for n, share in enumerate(shares)
        ]
        browser.driver.execute_cdp_cmd(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}
        )

    low, high = full = browser.run(
        "return [state.lineage.scales.x.min, state.lineage.scales.x.max]"
    )
    fingers("touchStart", 0.4)
    fingers("touchStart", 0.4, 0.6)
    fingers("touchMove", 0.3, 0.7)
    fingers("touchEnd")
    wait(
        browser,
        "Math.abs(state.lineage.scales.x.max - state.lineage.scales.x.min - "
        f"{(high - low) / 2}) < 0.5",
    )
    low = browser.run("return state.lineage.scales.x.min")
    assert abs((low - full[0]) - (full[1] - full[0]) / 4) < 0.5, "the middle stays where it was"
    fingers("touchStart", 0.5)
    fingers("touchMove", 0.7)
    fingers("touchEnd")
    wait(
        browser,
        f"Math.abs({low} - state.lineage.scales.x.min - {(full[1] - full[0]) / 2 * 0.2}) < 0.5",
    )
    assert browser.run("return state.isHeld") is False
    assert browser.run(f"return {PANEL}.hidden"), "a drag opens nothing"


def test_the_way_to_the_best_is_that_of_the_chosen_domain(browser: Browser, tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 30)
    lines = [json.loads(line) for line in Layout(run_dir).journal.read_text().splitlines()]
    best = {one["current_genid"]: one["score"] for one in lines if one["score"] is not None}
    lines[5]["scores"]["circle_packing"]["train"] = 0.999
    Layout(run_dir).journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    browser.open(page_of(run_dir))
    way = "return state.lineage.path.map((n) => runs[0].ids[n])"
    assert browser.run(way)[-1] == str(max(best, key=lambda one: best[one]))
    browser.run("document.querySelector('select[aria-label=score]').focus()")
    press_focused(browser, Keys.ARROW_DOWN)
    assert browser.run("return state.column") == "circle_packing train"
    assert browser.run(way)[-1] == "5"


def test_by_time_leaves_out_generations_without_a_time_and_says_so(
    browser: Browser, tmp_path: Path
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 12)
    lines = [json.loads(line) for line in Layout(run_dir).journal.read_text().splitlines()]
    for line in lines[:4]:  # as the original program wrote them
        line.pop("started")
    Layout(run_dir).journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    browser.open(page_of(run_dir))
    assert "without a time" not in browser.run("return places.hint.textContent")
    browser.driver.find_element(By.XPATH, "//button[.='by time']").click()
    wait(browser, "places.hint.textContent.endsWith('; 4 without a time are not shown')")
    assert browser.run("return state.lineage.data[0].length") == 8
    assert browser.run("return state.lineage.scales.x.min") > 1e9


def test_a_lineage_of_too_many_generations_says_why_it_has_no_lines(
    browser: Browser, tmp_path: Path
) -> None:
    browser.open(page_of(loop_run(tmp_path / "generate_1", 3010, with_files=False)))
    why = "more than 3,000 in sight: lines to parents come with a closer view"
    wait(browser, f"places.hint.textContent.endsWith('{why}')")
    browser.driver.find_element(By.XPATH, "//button[@aria-label='zoom in, lineage']").click()
    wait(browser, f"!places.hint.textContent.includes('{why}')")


def test_details_that_are_asked_for_before_they_have_arrived_are_shown_when_they_have(
    tmp_path: Path,
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 5)
    page_of(run_dir)
    first, mark, rest = (
        (run_dir / "page.html").read_bytes().partition(b'<script type="text/plain" class="block"')
    )
    asked = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(first)
            assert asked.wait(120)
            self.wfile.write(mark + rest)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    browser = Browser(waits=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            browser.driver.get(f"http://127.0.0.1:{server.server_port}/")
            wait(
                browser,
                "document.querySelector('.row') !== null && document.readyState === 'loading'",
            )
            browser.run("state.table.choose(4)")
            asked.set()
            wait(browser, f"{PANEL}.innerText.includes('+new 4')")
            assert [one for one in browser.errors() if "favicon" not in one] == []
        finally:
            asked.set()
            browser.driver.quit()
            server.shutdown()


def test_a_generation_names_what_its_page_leaves_out(browser: Browser, tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 3)
    for number in range(42):
        (run_dir / "gen_1" / "circle_packing_eval" / "agent_evals" / f"more{number}.md").write_text(
            "## Model\n\nhello\n"
        )
    browser.open(page_of(run_dir))
    browser.run("state.table.choose(1)")
    wait(
        browser,
        f"{PANEL}.innerText.includes('3 transcripts of tasks are left out: only the first 40 "
        "are here.')",
    )


def test_a_rollout_of_many_items_says_where_the_other_groups_are(
    browser: Browser, tmp_path: Path
) -> None:
    browser.open(page_of(rollout_run(tmp_path / "rollout_1", 203, 1)))
    assert "3 more groups: search the table above for an item." in browser.run(
        "return document.body.innerText"
    )


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_page_fits_its_window_in_both_colours(
    width: int, dark: bool, browser: Browser, tmp_path: Path
) -> None:
    browser.view(width=width, dark=dark)
    browser.open(page_of(loop_run(tmp_path / "generate_1", 20)))
    assert browser.run("return document.documentElement.dataset.theme") == (
        "dark" if dark else "light"
    )
    browser.run("state.table.choose(5)")
    wait(browser, "document.querySelector('pre.diff') !== null")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    press(browser, "t")
    wait(browser, f"document.documentElement.dataset.theme === '{'light' if dark else 'dark'}'")


def test_paper_gets_ink_all_that_is_folded_and_the_table(browser: Browser, tmp_path: Path) -> None:
    browser.view(width=800, dark=True)
    browser.open(page_of(loop_run(tmp_path / "generate_1", 20)))
    browser.run("state.table.choose(5)")
    wait(browser, "document.querySelector('pre.diff') !== null")
    browser.run("window.seen = null; window.addEventListener('beforeprint', () => { window.seen = {"
                "theme: document.documentElement.dataset.theme,"
                "folded: document.querySelectorAll('details:not([open])').length } })")  # fmt: skip
    browser.driver.execute_cdp_cmd("Page.printToPDF", {})
    wait(browser, "window.seen !== null && document.documentElement.dataset.theme === 'dark'")
    assert browser.run("return [window.seen.theme, window.seen.folded]") == ["light", 0]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = "return getComputedStyle(document.querySelector(arguments[0])).display"
    assert browser.run(shown, ".panel h2") != "none"
    assert browser.run(shown, "section.plain") == "block"
    assert browser.run(shown, ".panel .bar button") == "none"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_no_text_of_an_agent_runs(browser: Browser, tmp_path: Path) -> None:
    """200 attempts: each of 40 texts as a diff, a transcript, a log, a failure and the name of a
    task; and 40 more.
    """
    texts = hostile_texts()

    def said(number: int) -> Mapping[str, str]:
        return {**plain(number), **dict.fromkeys(("diff", "log", "detail", "task"), texts[number]),
                "history": f"# {texts[number]}\n\n{texts[number]}\n"}  # fmt: skip

    browser.open(page_of(loop_run(tmp_path / "generate_1", len(texts), said)))
    titles = [f"Generation {number or 'initial'}:" for number in range(len(texts))]
    assert browser.run_async(OPEN_ALL, titles) == len(texts) == 40
    assert browser.run("return window.pwned") is None
    browser.open(
        page_of(rollout_run(tmp_path / "rollout_1", len(texts), 1, lambda number: texts[number]))
    )
    assert browser.run_async(
        OPEN_ALL, [f"Trajectory item {number}/0:" for number in range(len(texts))]
    ) == len(texts)
    assert browser.run("return window.pwned") is None


def test_no_name_runs(browser: Browser, tmp_path: Path) -> None:
    """Names of a run, of items, of parts of a reward and of models, in tables, legends, titles and
    tool tips.
    """
    name = f"<img src=x onerror={PWN.replace(' ', '')}>"
    one, other = loop_run(tmp_path / name, 5), loop_run(tmp_path / f"2{name}", 5)
    (one / "exchanges.jsonl").write_text(
        json.dumps({"sent_as": name, "usage": {"input_tokens": 1}}) + "\n"
    )
    browser.open(page_of(one, other))
    assert name in browser.run("return document.querySelector('#main .u-legend').textContent")
    browser.run("state.table.choose(2)")
    wait(browser, f"{PANEL}.innerText.includes('+new 2')")
    rolled = rollout_run(tmp_path / "rollout_1", 2, 2)
    lines = (
        (rolled / "trajectories.jsonl").read_text().replace("item ", json.dumps(f"{name} ")[1:-1])
    )
    lines = lines.replace('"parts":{}', json.dumps({"parts": {name: 1.0, "__proto__": 2.0}})[1:-1])
    lines = lines.replace('"parts": {}', json.dumps({"parts": {name: 1.0, "__proto__": 2.0}})[1:-1])
    (rolled / "trajectories.jsonl").write_text(lines)
    browser.open(page_of(rolled))
    browser.run("state.table.choose(1)")
    wait(browser, f"{PANEL}.innerText.includes('{name} 0/1')")
    assert "__proto__" in browser.run("return document.querySelector('.head').innerText")
    assert browser.run("return window.pwned") is None


def test_several_runs_are_compared_by_what_they_spent(browser: Browser, tmp_path: Path) -> None:
    name = f"<img src=x onerror={PWN.replace(' ', '')}>"
    runs = [
        write_run(
            tmp_path / f"generate_{n}", [0.1, 0.1 * n, 0.2 * n], agent=f"{n % 2}{name}",
            seed=n, metrics={name: 0.5},
        )
        for n in range(1, 5)
    ]  # fmt: skip
    browser.open(page_of(*runs, "--baseline", "0.3"))
    assert browser.run("return document.querySelectorAll('canvas').length") == 3
    legend = "document.querySelector('#compared .u-legend').textContent"
    for text in (f"agent 1{name} (2): median", "baseline 0.3"):
        assert text in browser.run(f"return {legend}")
    browser.run("const by = document.querySelector('#compared select');"
                "by.value = 'tokens, read and written'; by.dispatchEvent(new Event('change'))")  # fmt: skip
    wait(browser, f"{legend}.startsWith('tokens')")
    assert "Mann-Whitney U" in browser.run("return document.querySelector('.compared').innerText")
    path = browser.run("return [...document.querySelectorAll('section')].find(one => "
                       "one.querySelector('h2')?.textContent === 'Best path').innerText")  # fmt: skip
    assert "+0.1000" in path
    assert "100 %" in path
    assert browser.run("return window.pwned") is None


def test_a_picture_of_a_domain_runs_no_script(browser: Browser, tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 2)
    page_of(run_dir)
    browser.driver.get((run_dir / "page.html").as_uri())
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' "
        f"onload='{PWN}'><script>parent.{PWN}</script></svg>"
    )
    browser.run("const img = new Image(); img.src = 'data:image/svg+xml,' + encodeURIComponent(arguments[0]);"
                "document.body.append(img); window.shown = img", svg)  # fmt: skip
    wait(browser, "window.shown.complete")
    assert browser.run("return window.pwned") is None


def test_a_rollout_shows_groups_tool_calls_and_tokens(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(rollout_run(tmp_path / "rollout_1", 5, 4)))
    assert "item 3" in browser.run("return document.body.innerText")
    models = (
        "[...document.querySelectorAll('.columns section')].find(one => "
        "one.firstChild.innerText === 'Models')"
    )
    assert browser.run(f"return [...{models}.querySelectorAll('th, td')].map(one => one.innerText)") == [
        "model", "requests", "tokens read", "written", "cost", "time", "small", "40", "2,000", "200", "0.01", "20.0 s",
    ]  # fmt: skip
    browser.run("state.table.choose(4)")
    wait(browser, "document.querySelectorAll('.message').length === 5")
    browser.run("for (const one of document.querySelectorAll('.panel details')) one.open = true")
    titles = browser.run(
        "return [...document.querySelectorAll('.tokens span')].map(one => one.title)"
    )
    assert titles == [
        "token 1, of the prompt", "token 2, of the prompt",
        "token 3, made by the model, log probability -0.1", "token 4, made by the model, log probability -5",
    ]  # fmt: skip
    assert browser.run("return document.querySelector('.tokens .l3').innerText").strip() == "4"
    assert "rewards of its group" in browser.run(
        "return document.querySelector('.panel').innerText"
    )


def test_two_runs_stand_side_by_side(browser: Browser, tmp_path: Path) -> None:
    one, other = loop_run(tmp_path / "generate_1", 30), loop_run(tmp_path / "generate_2", 40)
    browser.open(page_of(one, other))
    heads = browser.run(
        "return [...document.querySelectorAll('.script table th')].slice(0, 3).map(th => "
        "th.innerText)"
    )
    assert heads == ["", "generate_1", "generate_2"]
    browser.driver.find_element(By.XPATH, "//button[.='generate_2']").click()
    browser.run("state.table.choose(39)")
    wait(browser, f"{PANEL}.innerText.includes('+new 39')")
    assert "generate_1: best so far" in browser.run(
        "return document.querySelector('#main .u-legend').innerText"
    )


def test_a_page_is_readable_without_scripts(tmp_path: Path) -> None:
    url = page_of(loop_run(tmp_path / "generate_1", 1200, with_files=False))
    browser = Browser(scripts=False)
    try:
        browser.driver.get(url)
        words = browser.driver.find_element(By.TAG_NAME, "body").text
        rows = browser.driver.find_elements(By.CSS_SELECTOR, "section.plain tbody tr")
        assert "The best 1000 of 1200" in words
        assert len(rows) == 1000
        assert rows[0].is_displayed()
    finally:
        browser.driver.quit()


@pytest.mark.slow
def test_ten_thousand_generations_open_sort_and_scroll(browser: Browser, tmp_path: Path) -> None:
    browser.open(page_of(loop_run(tmp_path / "generate_1", 10_000, with_files=False)))
    assert browser.run("return document.querySelectorAll('.row').length") < 60
    browser.run("document.querySelector('.rows').scrollTop = 1e9")
    wait(
        browser,
        "document.querySelectorAll('.row').length > 5 && "
        "document.querySelector('.rows').scrollTop > 2e5",
    )
    browser.run("state.table.choose(9999)")
    wait(browser, "document.querySelector('.panel h2')?.innerText.startsWith('Generation 9999:')")
