"""The modules that are entered from the start of ``hyperrun generate`` to its first container.

    python tests/bench/modules.py
    PYTHONPATH=CHECKOUT:CHECKOUT/domains python tests/bench/modules.py

A module is entered if one of its functions is called; what runs while a module is imported is not
counted. The engine is the fake driver, and the agent is the default one of circle_packing, which
needs no model. The first container is the first call of the driver's ``launch``, in any thread.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_IMPORT = "_find_and_load"  # of importlib: what it calls is a module's own code
_NOT_COUNTED = "testing"


class Entered:
    """The modules below a folder, in the order in which they are entered."""

    def __init__(self, folder: Path) -> None:
        self.modules: dict[str, str] = {}  # name: the first function
        self.is_over = False
        self._folder = f"{folder}{os.sep}"
        self._importing = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call; a function for ``sys.setprofile``."""
        code = frame.f_code
        if code.co_name == _IMPORT and event in ("call", "return"):
            depth = getattr(self._importing, "depth", 0) + (1 if event == "call" else -1)
            self._importing.depth = depth
        elif (
            event == "call"
            and not self.is_over
            and not getattr(self._importing, "depth", 0)
            and code.co_filename.startswith(self._folder)
        ):
            name = code.co_filename.removeprefix(self._folder)
            if not name.startswith(_NOT_COUNTED) and code.co_name != "<module>":
                self.modules.setdefault(name, code.co_qualname)


def install_fake_engine(folder: Path) -> None:
    """Register the fake driver as the engine ``fake``, as the package of a plug-in does."""
    metadata = folder / "fake_engine-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-engine\nVersion: 1.0\n")
    points = "[hyperruntime.runtimes]\nfake = hyperruntime.testing:FakeDriver\n"
    (metadata / "entry_points.txt").write_text(points)
    sys.path.insert(0, str(folder))


def main() -> None:
    import hyperruntime
    from hyperruntime.cli import main as hyperrun
    from hyperruntime.errors import EngineError
    from hyperruntime.testing import FakeDriver

    entered = Entered(Path(hyperruntime.__file__).parent)

    def launch(self: FakeDriver, launch: Any) -> NoReturn:
        entered.is_over = True
        raise EngineError("this is all that is measured")

    FakeDriver.launch = launch  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        install_fake_engine(Path(folder))
        os.environ["XDG_STATE_HOME"] = folder
        args = ["--runtime", "fake", "generate", "--domains", "circle_packing"]
        args += ["--max-generation", "1", "--output-dir-parent", folder]
        threading.setprofile(entered)
        sys.setprofile(entered)
        hyperrun(args)
        sys.setprofile(None)
        threading.setprofile(None)
    if not entered.is_over:
        sys.exit("no container was started")
    for number, (name, function) in enumerate(entered.modules.items(), 1):
        print(f"{number:4}  {name:45} {function}")


if __name__ == "__main__":
    main()
