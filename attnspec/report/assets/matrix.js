// Who wins where: one row a workload, one column an implementation, each entry a share of the row's fastest.
const MATRIX_ROWS = 60;
let matrixAll = false;
function workloads(rows) {
  const held = new Map();
  for (const row of rows) {
    const key = JSON.stringify(["device", "level", "mask", "pass", "seqlen", "cp_size", "shape", "num_packs"].map((name) => value(name, row)));
    if (!held.has(key)) held.set(key, []);
    held.get(key).push(row);
  }
  return [...held.values()].filter((one) => one.some((row) => value("status", row) !== "skipped"));
}
// The same colours as the figures' heat map (cividis), at five places.
const HEAT = ["#00224e", "#35456c", "#666970", "#a69d75", "#fee838"];
function heat(share) {
  const place = Math.min(share, 0.9999) * (HEAT.length - 1), low = Math.floor(place);
  return mixed(HEAT[low], HEAT[low + 1], place - low);
}
function showMatrix(rows) {
  const box = document.getElementById("matrix"), held = workloads(rows.filter(isCompared)), blocks = new Map();
  held.sort((one, other) => groupPlace(one[0]) - groupPlace(other[0]) || sizeKey(one[0]) - sizeKey(other[0]));
  for (const one of held) {
    const key = blockOf(one[0]);
    if (!blocks.has(key)) blocks.set(key, []);
    blocks.get(key).push(one);
  }
  let left = matrixAll ? Infinity : MATRIX_ROWS;
  const made = [];
  for (const [name, block] of blocks) {
    const labels = inOrder(new Set(block.flat().filter((row) => value("status", row) !== "skipped").map((row) => value("label", row))));
    if (left > 0 && labels.length > 1) made.push(matrixOf(block.slice(0, left), labels, blocks.size > 1 ? name + ". " : ""));
    left -= block.length;
  }
  if (left < 0 && made.length) made.push(element("p", { class: "tools" }, element("button", { type: "button", on: { click: () => { matrixAll = true; showMatrix(filtered()); } } }, `Show all ${held.length} rows`)));
  box.replaceChildren(...made);
}
// Implementations of one device, level and shape share a table, so that none is wide with columns that it does not fill.
const blockOf = (row) => [value("device", row), LEVEL_WORDS[value("level", row)], value("shape", row)].join(", ");
function matrixOf(shown, labels, name) {
  const body = element("tbody");
  let before = null;
  for (const one of shown) {
    const group = `${value("mask", one[0])}, ${value("pass", one[0])}`;
    if (group !== before) body.append(element("tr", { class: "group" }, element("th", { scope: "colgroup", colspan: labels.length + 1 }, group)));
    before = group;
    body.append(matrixRow(one, labels));
  }
  const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "size"), ...labels.map((label) => element("th", { scope: "col", class: "impl" }, swatch(label), " ", label))));
  const table = element("table", { class: "matrix" }, element("caption", { class: "quiet" }, element("b", {}, name), "Throughput as a share of the row's fastest; the fastest is bold. Press an entry for the case."), head, body);
  return element("div", { class: "scroll matrix block", tabindex: "0", role: "region", "aria-label": `${name}Share of the fastest by workload and implementation` }, table);
}
const groupPlace = (row) => groupOfRow.get(row) ?? 1e9;
const groupOfRow = new Map(payload.groups.flatMap((group, index) => group.rows.map((row) => [row, index])));
const isCompared = (row) => groupOfRow.has(row); // not a rehearsal's
function matrixRow(rows, labels) {
  const best = Math.max(...rows.filter(isOk).map((row) => value("tflops", row)));
  const line = element("tr", {}, element("th", { scope: "row" }, sizeText(rows[0])));
  for (const label of labels) {
    const row = rows.find((one) => value("label", one) === label);
    if (row === undefined) { line.append(element("td", {}, "")); continue; }
    const cell = element("td", { "data-row": row });
    if (isOk(row) && value("tflops", row) !== null) {
      const share = best > 0 ? value("tflops", row) / best : 1;
      cell.textContent = percent(share);
      cell.style.background = heat(share);
      cell.style.color = share < 0.62 ? "#ffffff" : "#10131a";
      if (share === 1) cell.className = "best";
      cell.title = `${digits(value("tflops_per_gpu", row))} TFLOP/s per ${RANK}`;
    } else {
      cell.textContent = MARKS[value("status", row)] || "?";
      cell.title = `${STATUS_WORDS[value("status", row)] || ""}: ${(value("reason", row) || "").split("\n")[0].slice(0, 200)}`;
    }
    line.append(cell);
  }
  return line;
}
