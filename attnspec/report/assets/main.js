// Cards follow the filters; everything starts here.
const cards = [...document.querySelectorAll("[data-group]")];
const cardRows = cards.map((card) => payload.groups[Number(card.dataset.group)].rows);
function showCards() {
  const shown = new Set(filtered());
  let any = false;
  cards.forEach((card, index) => {
    const rows = cardRows[index].filter((row) => shown.has(row)), box = card.querySelector(".chart");
    card.hidden = !rows.length;
    any = any || rows.length > 0;
    if (!rows.length) { drop(box); return; }
    showLegend(card.querySelector(".legend"), inOrder(new Set(rows.map((row) => value("label", row)))), rows.some((row) => payload.published[row]));
    chart(box, () => barOption(rows, payload.groups[index].peak));
    if (card.querySelector("table")) showNumbers(card, rows);
    card.querySelector(".numbers").onclick = () => toggleNumbers(card, rows);
  });
  document.getElementById("no-groups").hidden = any || !cards.length;
}
function toggleNumbers(card, rows) {
  const button = card.querySelector(".numbers"), old = card.querySelector(".scroll");
  button.setAttribute("aria-expanded", String(!old));
  if (old) old.remove(); else showNumbers(card, rows);
}
function showNumbers(card, rows) { // the chart as a table, for readers who do not see it
  card.querySelector(".scroll")?.remove();
  const sizes = [...new Map(rows.map((row) => [sizeKey(row), sizeText(row)])).entries()].sort((one, other) => one[0] - other[0]);
  const labels = inOrder(new Set(rows.map((row) => value("label", row))));
  const entry = (row) => (row === undefined ? "" : isOk(row) ? digits(value("tflops_per_gpu", row)) : STATUS_WORDS[value("status", row)]);
  const lines = labels.map((label) => element("tr", {}, element("th", { scope: "row" }, label), ...sizes.map(([key]) => element("td", { class: "n" }, entry(rows.find((row) => value("label", row) === label && sizeKey(row) === key))))));
  const head = element("tr", {}, element("th", { scope: "col" }, `TFLOP/s per ${RANK}`), ...sizes.map(([, text]) => element("th", { scope: "col", class: "n" }, text)));
  card.append(element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The chart's numbers" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines))));
}
listeners.push(() => showMatrix(filtered()), showCards, () => showSpreads(filtered()), () => { firstRow = 0; showTable(); });
themeListeners.push(() => { if (current.length || numRows) { patternCache.clear(); redraw(); } });
startTheme();
startTable();
startFilters();
filter();
themeListeners.push(() => { showMatrix(filtered()); showCards(); showSpreads(filtered()); showTable(); document.querySelectorAll(".filters .swatch").forEach((old) => old.replaceWith(swatch(old.parentElement.querySelector("input").value))); });
startDetails();
document.documentElement.dataset.ready = "true";
