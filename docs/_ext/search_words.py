"""Let the search of the pages find "hyper-parameters" by "hyperparameters", and other words with a hyphen likewise."""

import re
from typing import Any

from sphinx.search.en import SearchEnglish


class SearchWords(SearchEnglish):
    """English, in which a compound with hyphens is found by its parts and by the compound without hyphens."""

    def split(self, input: str) -> list[str]:
        """Return the words of a text for the index."""
        compounds = re.findall(r"\b[^\W\d_]+(?:-[^\W\d_]+)+", input)
        return super().split(input) + [compound.replace("-", "") for compound in compounds]


def setup(app: Any) -> dict[str, Any]:
    """Register the language of the search; Sphinx calls this function."""
    app.add_search_language(SearchWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
