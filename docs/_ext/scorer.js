// Sphinx's scores, with the pages first whose title contains all words of the query.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    const words = (text) => text.toLowerCase().replaceAll("-", "").split(/[^\p{L}\d_]+/u).filter(Boolean);
    const query = words(new URLSearchParams(window.location.search).get("q") || "");
    return !anchor && query.every((word) => words(title).includes(word)) ? score + 20 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
