"""The tables of HyperAgents: ``paper_review``, ``search_arena``, ``imo_grading``, ``imo_proof``.

The user has the tables; ``paper_review:FOLDER`` names their directory. Without it, they are where a
checkout of HyperAgents has them. Labels, reference solutions and rubrics stay on the host.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from hyperdomain_original.graders import load_options
from hyperdomain_original.proofs import ProofDomain
from hyperdomain_table import Table
from hyperdomain_table.rows import Row
from hyperruntime.errors import SpecError

__all__ = ["ImoGrading", "ImoProof", "PaperReview", "SearchArena"]

_DEFINITIONS = Path(__file__).parent / "definitions"


class _OriginalTable(Table):
    """A table that HyperAgents has, too: the same columns, labels, splits and first stages."""

    table: str
    home: str

    def __init__(self, folder: str | None = None) -> None:
        """Choose the directory of the tables.

        Args:
            folder: the directory; None means its place in a checkout of HyperAgents, which is then
                the current directory.
        """
        place = Path("domains", self.home) if folder is None else Path(folder)
        self._folder = place.absolute()
        super().__init__(str(_DEFINITIONS / f"{self.table}.toml"), folder=self._folder)

    @cached_property
    def _rows(self) -> dict[str, dict[str, Row]]:
        names = [path.name for path in self.definition.files.values()]
        if missing := [name for name in names if not (self._folder / name).is_file()]:
            allowed = f"{self.name}:FOLDER with {', '.join(missing)}; see docs/domains.md"
            raise SpecError("tables", str(self._folder), allowed)
        return super()._rows


class PaperReview(_OriginalTable):
    """Predict whether a paper was accepted."""

    table = home = "paper_review"


class SearchArena(_OriginalTable):
    """Predict which of two conversations a person preferred."""

    table = home = "search_arena"


class ImoGrading(_OriginalTable):
    """Grade a proof as a person did."""

    table = "imo_grading"
    home = "imo"


class ImoProof(ProofDomain, _OriginalTable):
    """Write proofs, which models grade."""

    table = "imo_proof"
    home = "imo"

    def __init__(self, place: str | None = None) -> None:
        """Choose the table and the graders.

        Args:
            place: the directory of the table, or the graders' ``FILE.toml``, which names it;
                None: as for the other tables.

        Raises:
            GatewayConfigError: the file cannot be read, or has no table ``[graders]``.
            SpecError: a field of the table is invalid.
        """
        if place is not None and place.endswith(".toml"):
            self.graders_file = Path(place).absolute()
            place = str(self.graders_file.parent / load_options(self.graders_file).tables)
        super().__init__(place)
