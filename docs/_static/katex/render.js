// Replace the TeX of each equation on the page. Deferred scripts run in the order of the page: KaTeX is loaded first.
for (const equation of document.querySelectorAll(".math")) {
  katex.render(equation.textContent, equation, { displayMode: equation.tagName === "DIV", throwOnError: false });
}
