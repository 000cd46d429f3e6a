// How the site's search ranks a result. Sphinx takes this in place of its own table (html_search_scorer).
// The reasons for the design and the changelog name everything, and a reader seldom wants them: they come last.
var Scorer = {
  // A result is [page, title, anchor, description, score, file, kind].
  score: (result) => (/^(design\/|project\/changelog$)/.test(result[0]) ? result[4] - 1000 : result[4]),
  // The weights of Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
