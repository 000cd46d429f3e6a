"""The page about a run, in Chromium: what a reader sees and does, and that no text of an agent runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from hyperruntime.cli import main
from hyperruntime.loop.run_files.layout import Layout
from tests.browser.conftest import Browser
from tests.doubles.shown_runs import loop_run, plain, rollout_run

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
    browser.driver.get(page_of(loop_run(tmp_path / "generate_1", 300)))
    assert "300" in browser.run("return document.querySelector('.tiles').innerText")
    assert browser.run("return document.querySelectorAll('canvas').length") == 2
    assert browser.run("return document.querySelectorAll('.row').length") < 60
    press(browser, "/", "exit code")
    wait(browser, "document.querySelectorAll('.row').length && document.body.innerText.includes('43 of 300')")
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.run("state.table.find.value = ''; state.table.find.dispatchEvent(new Event('input'))")
    (browser.driver.find_element(By.XPATH, "//div[@class='head']/button[starts-with(., 'generation')]")).click()
    press(browser, "j", "j")
    wait(browser, "document.querySelector('pre.diff .added') !== null")
    shown = browser.run("return document.querySelector('.panel').innerText")
    assert shown.startswith("Generation 1:")
    assert "+new 1" in shown
    assert browser.run("return document.querySelectorAll('.panel img')[0].naturalWidth") > 0
    assert browser.run("return [...document.querySelectorAll('.panel details')].find(d => "
                       "d.querySelector('summary').textContent.startsWith('Tool call')).open") is False  # fmt: skip
    press(browser, Keys.ESCAPE)
    wait(browser, "document.querySelector('.panel').hidden")


def rows(browser: Browser, count: int) -> list[str]:
    """Wait until the table has so many rows, and return what their first cells say."""
    wait(browser, f"document.querySelector('.bar .hint').innerText.startsWith('{count} of ')")
    made: list[str] = browser.run("return [...document.querySelectorAll('.row')].map(one => one.firstChild.innerText)")
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


def test_each_filter_of_generations_leaves_its_rows_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 20)
    made = [json.loads(line) for line in Layout(run_dir).journal.read_text().splitlines()]
    scores = {str(one["current_genid"]): one["score"] for one in made if one["score"] is not None}
    failed = [str(one["current_genid"]) for one in made if one["score"] is None]
    ranked = sorted(scores, key=lambda name: -scores[name])
    browser.driver.get(page_of(run_dir))
    assert rows(browser, 20) == [*ranked, *failed]

    press(browser, "/", "exit code")
    assert rows(browser, len(failed)) == failed == ["3", "10", "17"]
    press_focused(browser, Keys.ENTER)  # from the search into the table
    for key, name in (("j", "3"), ("j", "10"), (Keys.ARROW_DOWN, "17"), ("k", "10"), (Keys.ARROW_UP, "3")):
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
    press_focused(browser, Keys.ARROW_DOWN)  # circle_packing train: each generation has 0.01 more there
    trained = rows(browser, sum(score + 0.01 >= scores[ranked[middle]] + 0.004 for score in scores.values()))
    assert ranked[middle] in trained
    assert trained == ranked[: len(trained)]
    type_into(browser, "clear", Keys.ENTER)
    assert rows(browser, 20) == [*ranked, *failed]


def test_each_filter_of_trajectories_leaves_its_rows_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    run_dir = rollout_run(tmp_path / "rollout_1", 5, 4)
    made = [json.loads(line) for line in (run_dir / "trajectories.jsonl").read_text().splitlines()]
    rewards = {one["id"]: one["reward"] for one in made if one["reward"] is not None}
    ranked = sorted(rewards, key=lambda name: -rewards[name])
    failed = [f"item {item}/3" for item in range(5)]
    browser.driver.get(page_of(run_dir))
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
    type_into(browser, "failures", Keys.ARROW_DOWN * 2)
    assert rows(browser, 1) == ["item 2/3"]
    type_into(browser, "clear", " ")
    assert rows(browser, 20) == [*ranked, *failed]

    press(browser, "/", "nodelost")
    assert rows(browser, 5) == failed
    type_into(browser, "failures", Keys.ARROW_DOWN)
    assert rows(browser, 0) == []
    press_focused(browser, Keys.SHIFT + Keys.TAB + Keys.NULL, Keys.CONTROL + "a" + Keys.NULL, Keys.BACKSPACE)
    assert rows(browser, 15) == ranked
    type_into(browser, "least score", f"{rewards[ranked[4]]:.4f}"[:-1])
    least = float(f"{rewards[ranked[4]]:.4f}"[:-1])
    assert rows(browser, sum(reward >= least for reward in rewards.values()))[:5] == ranked[:5]
    type_into(browser, "clear", " ")
    assert rows(browser, 20) == [*ranked, *failed]


def test_the_lineage_zooms_pans_and_opens_a_generation(browser: Browser, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    browser.driver.get(page_of(loop_run(tmp_path / "generate_1", 50)))
    chart = browser.run("return state.lineage.over")
    browser.run("arguments[0].scrollIntoView()", chart)
    scale = "return [state.lineage.scales.x.min, state.lineage.scales.x.max]"
    full = browser.run(scale)
    ActionChains(browser.driver).scroll_from_origin(ScrollOrigin.from_element(chart), 0, -120).perform()
    wait(browser, f"state.lineage.scales.x.max - state.lineage.scales.x.min < {full[1] - full[0] - 1}")
    zoomed = browser.run(scale)
    ActionChains(browser.driver).drag_and_drop_by_offset(chart, 60, 0).perform()
    wait(browser, f"state.lineage.scales.x.min < {zoomed[0] - 0.5}")
    ActionChains(browser.driver).double_click(chart).perform()
    wait(browser, f"Math.abs(state.lineage.scales.x.max - {full[1]}) < 0.01")
    at = browser.run("const u = state.lineage; return [u.valToPos(20, 'x'), u.valToPos(runs[0].score[20], 'y')]")
    box = browser.run("const b = arguments[0].getBoundingClientRect(); return [b.width, b.height]", chart)
    offset = (round(at[0] - box[0] / 2), round(at[1] - box[1] / 2))
    ActionChains(browser.driver).move_to_element_with_offset(chart, *offset).perform()
    wait(browser, "places.hint.textContent.startsWith('20 ')")  # a click opens what the hint names
    ActionChains(browser.driver).click().perform()
    wait(browser, f"{PANEL}.innerText.startsWith('Generation 20:')")
    browser.driver.find_element(By.XPATH, "//button[.='by time']").click()
    wait(browser, "state.byTime && state.lineage.scales.x.min > 1e9")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_page_fits_its_window_in_both_colours(width: int, dark: bool, browser: Browser, tmp_path: Path) -> None:
    browser.view(width=width, dark=dark)
    browser.driver.get(page_of(loop_run(tmp_path / "generate_1", 20)))
    assert browser.run("return document.documentElement.dataset.theme") == ("dark" if dark else "light")
    browser.run("state.table.choose(5)")
    wait(browser, "document.querySelector('pre.diff') !== null")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    press(browser, "t")
    wait(browser, f"document.documentElement.dataset.theme === '{'light' if dark else 'dark'}'")


def test_paper_gets_ink_all_that_is_folded_and_the_table(browser: Browser, tmp_path: Path) -> None:
    browser.view(width=800, dark=True)
    browser.driver.get(page_of(loop_run(tmp_path / "generate_1", 20)))
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


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_no_text_of_an_agent_runs(every: int, browser: Browser, tmp_path: Path) -> None:
    """200 attempts: each of 40 texts as a diff, a transcript, a log, a failure and the name of a task."""
    fields = ("diff", "history", "log", "detail", "task")

    def said(number: int) -> Mapping[str, str]:
        text = HOSTILE[number // len(fields)].replace("{{", "{").replace("}}", "}").replace("{}", PWN)
        field = fields[number % len(fields)]
        return {**plain(number), field: f"# {text}\n\n{text}\n" if field == "history" else text}

    count = len(HOSTILE) * len(fields)
    assert count == 200
    run_dir = loop_run(tmp_path / "generate_1", count, said)
    browser.driver.get(page_of(run_dir))
    for number in range(0, count, every):
        browser.run("state.table.choose(arguments[0])", number)
        name = "initial" if number == 0 else str(number)
        wait(browser, f"document.querySelector('.panel h2')?.innerText.startsWith('Generation {name}:')")
        browser.run("for (const one of document.querySelectorAll('.panel details')) one.open = true")
    texts = [one.replace("{{", "{").replace("}}", "}").replace("{}", PWN) for one in HOSTILE]
    rolled = rollout_run(tmp_path / "rollout_1", len(texts), 1, lambda number: texts[number])
    assert browser.run("return window.pwned") is None
    browser.driver.get(page_of(rolled))
    for number in range(0, len(texts), every):
        browser.run("state.table.choose(arguments[0])", number)
        wait(browser, f"document.querySelector('.panel h2')?.innerText.startsWith('Trajectory item {number}/0')")
        browser.run("for (const one of document.querySelectorAll('.panel details')) one.open = true")
    assert browser.run("return window.pwned") is None


def test_no_name_runs(browser: Browser, tmp_path: Path) -> None:
    """Names of a run, of items, of parts of a reward and of models, in tables, legends, titles and tool tips."""
    name = f"<img src=x onerror={PWN.replace(' ', '')}>"
    one, other = loop_run(tmp_path / name, 5), loop_run(tmp_path / f"2{name}", 5)
    (one / "exchanges.jsonl").write_text(json.dumps({"sent_as": name, "usage": {"input_tokens": 1}}) + "\n")
    browser.driver.get(page_of(one, other))
    assert name in browser.run("return document.querySelector('.u-legend').textContent")
    browser.run("state.table.choose(2)")
    wait(browser, f"{PANEL}.innerText.includes('+new 2')")
    rolled = rollout_run(tmp_path / "rollout_1", 2, 2)
    lines = (rolled / "trajectories.jsonl").read_text().replace("item ", json.dumps(f"{name} ")[1:-1])
    lines = lines.replace('"parts":{}', json.dumps({"parts": {name: 1.0, "__proto__": 2.0}})[1:-1])
    lines = lines.replace('"parts": {}', json.dumps({"parts": {name: 1.0, "__proto__": 2.0}})[1:-1])
    (rolled / "trajectories.jsonl").write_text(lines)
    browser.driver.get(page_of(rolled))
    browser.run("state.table.choose(1)")
    wait(browser, f"{PANEL}.innerText.includes('{name} 0/1')")
    assert "__proto__" in browser.run("return document.querySelector('.head').innerText")
    assert browser.run("return window.pwned") is None


def test_a_picture_of_a_domain_runs_no_script(browser: Browser, tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 2)
    page_of(run_dir)
    browser.driver.get((run_dir / "page.html").as_uri())
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload='{PWN}'><script>parent.{PWN}</script></svg>"
    browser.run("const img = new Image(); img.src = 'data:image/svg+xml,' + encodeURIComponent(arguments[0]);"
                "document.body.append(img); window.shown = img", svg)  # fmt: skip
    wait(browser, "window.shown.complete")
    assert browser.run("return window.pwned") is None


def test_a_rollout_shows_groups_tool_calls_and_tokens(browser: Browser, tmp_path: Path) -> None:
    browser.driver.get(page_of(rollout_run(tmp_path / "rollout_1", 5, 4)))
    assert "item 3" in browser.run("return document.body.innerText")
    models = "[...document.querySelectorAll('.columns section')].find(one => one.firstChild.innerText === 'Models')"
    assert browser.run(f"return [...{models}.querySelectorAll('td')].map(one => one.innerText)") == [
        "small", "40", "", "2,000", "200", "0.01", "20.0 s",
    ]  # fmt: skip
    browser.run("state.table.choose(4)")
    wait(browser, "document.querySelectorAll('.message').length === 5")
    browser.run("for (const one of document.querySelectorAll('.panel details')) one.open = true")
    titles = browser.run("return [...document.querySelectorAll('.tokens span')].map(one => one.title)")
    assert titles == [
        "token 1, of the prompt", "token 2, of the prompt",
        "token 3, made by the model, log probability -0.1", "token 4, made by the model, log probability -5",
    ]  # fmt: skip
    assert browser.run("return document.querySelector('.tokens .l3').innerText").strip() == "4"
    assert "rewards of its group" in browser.run("return document.querySelector('.panel').innerText")


def test_two_runs_stand_side_by_side(browser: Browser, tmp_path: Path) -> None:
    one, other = loop_run(tmp_path / "generate_1", 30), loop_run(tmp_path / "generate_2", 40)
    browser.driver.get(page_of(one, other))
    heads = browser.run("return [...document.querySelectorAll('.script table th')].slice(0, 3).map(th => th.innerText)")
    assert heads == ["", "generate_1", "generate_2"]
    browser.driver.find_element(By.XPATH, "//button[.='generate_2']").click()
    browser.run("state.table.choose(39)")
    wait(browser, f"{PANEL}.innerText.includes('+new 39')")
    assert "generate_1: best so far" in browser.run("return document.querySelector('.u-legend').innerText")


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
    browser.driver.get(page_of(loop_run(tmp_path / "generate_1", 10_000, with_files=False)))
    assert browser.run("return document.querySelectorAll('.row').length") < 60
    browser.run("document.querySelector('.rows').scrollTop = 1e9")
    wait(browser, "document.querySelectorAll('.row').length > 5 && document.querySelector('.rows').scrollTop > 2e5")
    browser.run("state.table.choose(9999)")
    wait(browser, "document.querySelector('.panel h2')?.innerText.startsWith('Generation 9999:')")
