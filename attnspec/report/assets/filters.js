// What is shown: one set of chosen values per dimension; charts, matrix and table follow.
const DIMENSIONS = [["level", "Level"], ["device", "Device"], ["run", "Run"], ["mask", "Mask"], ["pass", "Pass"], ["label", "Implementation"], ["status", "Status"]];
const chosen = new Map();
const listeners = [];
let current = [];
const filtered = () => current;

function filter() {
  const tests = [...chosen].map(([name, texts]) => {
    const column = columns[name], asked = new Set(offered(name)), allowed = column.texts.map((text) => texts.has(text) || !asked.has(text));
    return (row) => column.places[row] < 0 || allowed[column.places[row]];
  });
  current = allRows.filter((row) => tests.every((test) => test(row)));
  document.getElementById("filter-count").textContent = current.length === numRows ? `all ${numRows.toLocaleString("en-US")} cases` : `${current.length.toLocaleString("en-US")} of ${numRows.toLocaleString("en-US")} cases`;
  listeners.forEach((act) => act());
}
function offersOf(name) { // values of which anything was run; where nothing was, all
  const ran = new Set(allRows.filter((row) => value("status", row) !== "skipped").map((row) => value(name, row)));
  const texts = columns[name].texts.filter((text) => name === "status" || !ran.size || ran.has(text));
  return name === "label" ? inOrder(texts) : texts;
}
const offers = new Map(DIMENSIONS.map(([name]) => [name, offersOf(name)]));
const offered = (name) => offers.get(name);
function startFilters() {
  const fields = document.getElementById("filter-fields");
  for (const [name, title] of DIMENSIONS) {
    const texts = offered(name);
    if (texts.length < 2) continue;
    chosen.set(name, new Set(texts));
    const chips = texts.map((text) => element("label", { class: "chip" }, element("input", { type: "checkbox", name, value: text, checked: true, on: { change: (event) => pick(name, text, event.target.checked) } }), name === "label" ? swatch(text) : null, name === "status" ? STATUS_WORDS[text] || text : text));
    const only = element("button", { type: "button", class: "all", on: { click: () => pickAll(name, texts) } }, "all / none");
    fields.append(element("fieldset", {}, element("legend", {}, title), element("div", { class: "chips" }, ...chips, texts.length > 2 ? only : null)));
  }
  document.getElementById("filter-reset").addEventListener("click", reset);
  document.getElementById("patterns").addEventListener("change", () => { document.querySelectorAll(".filters .swatch").forEach((old) => old.replaceWith(swatch(old.parentElement.querySelector("input").value))); filter(); });
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("filters").hidden = false;
  if (matchMedia("(max-width: 40rem)").matches) document.querySelector("#filters details").open = false;
  defaults();
}
function defaults() { // what nobody ran is left out at first, where something was run
  const texts = columns.status.texts;
  if (texts.length > 1 && texts.includes("skipped")) mark("status", "skipped", false);
}
function mark(name, text, on) {
  if (on) chosen.get(name).add(text); else chosen.get(name).delete(text);
  for (const box of document.getElementsByName(name)) if (box.value === text) box.checked = on;
}
function pick(name, text, on) { mark(name, text, on); filter(); }
function pickAll(name, texts) {
  const on = chosen.get(name).size < texts.length;
  texts.forEach((text) => mark(name, text, on));
  filter();
}
function reset() {
  for (const [name] of chosen) offered(name).forEach((text) => mark(name, text, true));
  defaults();
  filter();
}
