// Prepare tables for narrow screens; layout.css does the rest.

// Whether a text is a number, also with its spread, or the sign of a missing one.
const isNumber = (text) => /^(–|[−+-]?\d.{0,20})$/.test(text);

for (const table of document.querySelectorAll("article table.docutils")) {
  const columns = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
  const texts = [];
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].slice(1).forEach((cell, i) => {
      const text = cell.textContent.trim();
      if (columns[i + 1]) cell.dataset.column = columns[i + 1];
      cell.classList.toggle("empty", !text);
      cell.classList.toggle("number", isNumber(text));
      if (text) texts.push(text);
    });
  }
  const isNumeric = texts.filter(isNumber).length > texts.length / 2;
  table.classList.add(isNumeric ? "numbers" : "text");
  breakCode(table);
}

// Allow line breaks behind the punctuation of long code in a table that is too wide.
function breakCode(table) {
  const box = table.parentElement;
  if (box.scrollWidth <= box.clientWidth) return;
  for (const span of table.querySelectorAll("code .pre")) {
    if (span.textContent.length <= 8) span.style.whiteSpace = "nowrap";
    const parts = [""];
    for (const part of span.textContent.split(/(?<=[_(,./=-])(?=[a-z])|(?<=[a-z])(?=[A-Z])/)) {
      if (parts.at(-1).length < 8) parts.push(parts.pop() + part);
      else parts.push(part);
    }
    span.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]).slice(0, -1));
  }
}
