"""The mutations in tests/mutations, which take too long to run here."""

from pathlib import Path

from tests.mutations.__main__ import MUTATIONS

PACKAGE = Path(__file__).parents[1] / "tfdpg"


def test_each_mutation_changes_a_text_that_appears_once():
    stale = [each.name for each in MUTATIONS if (PACKAGE / each.file).read_text().count(each.before) != 1]
    assert len(MUTATIONS) > 60 and not stale
