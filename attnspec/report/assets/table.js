// The table of cases: sorted, searched, a page at a time, copied as CSV.
const PAGE_ROWS = 100;
const COLUMN_SETS = {
  speed: ["label", "mask", "pass", "size", "status", "tflops_per_gpu", "interval", "efficiency", "time_ms_median", "num_samples"],
  cost: ["label", "mask", "pass", "size", "status", "time_ms_median", "lower_s", "compile_s", "verify_s", "setup_s", "host_ms", "peak_memory_bytes"],
  trust: ["label", "mask", "pass", "size", "status", "verified", "num_samples", "width", "sm_clock_mhz", "clock_spread", "throttled", "provider", "kernel_names"],
  ranks: ["label", "mask", "pass", "size", "status", "tflops_per_gpu", "load_imbalance", "exposed_comm_ms", "comm_bytes", "padding_tokens", "mesh", "env"],
};
const plainColumn = (name, title, show = (text) => text ?? "") => ({ title, get: (row) => value(name, row), show });
const numberColumn = (name, title, show = (number) => digits(number)) => ({ title, number: true, get: (row) => value(name, row), show });
const COLUMNS = {
  label: plainColumn("label", "implementation"), mask: plainColumn("mask", "mask"), pass: plainColumn("pass", "pass"),
  size: { title: "size", number: true, get: sizeKey, show: (_, row) => sizeText(row) }, status: plainColumn("status", "status", (text) => STATUS_WORDS[text] || text),
  tflops_per_gpu: numberColumn("tflops_per_gpu", `TFLOP/s per ${RANK}`), efficiency: numberColumn("efficiency", "of bf16 peak", (share) => percent(share, 1)),
  interval: { title: "95% interval", number: true, get: (row) => value("tflops_ci_low", row), show: (low, row) => (low === null ? "" : `${digits(low / value("cp_size", row))} to ${digits(value("tflops_ci_high", row) / value("cp_size", row))}`) },
  width: { title: "interval's width", number: true, get: (row) => (value("time_ms_ci_high", row) === null ? null : (value("time_ms_ci_high", row) - value("time_ms_ci_low", row)) / value("time_ms_median", row)), show: (share) => percent(share, 1) },
  verified: { title: "error / bound", number: true, get: (row) => (value("verified_error", row) === null ? null : value("verified_error", row) / value("verified_bound", row)), show: (_, row) => (value("verified_error", row) === null ? "" : `${digits(value("verified_error", row), 3)} / ${digits(value("verified_bound", row), 3)}`) },
  time_ms_median: numberColumn("time_ms_median", "time (ms)"), num_samples: numberColumn("num_samples", "samples"), lower_s: numberColumn("lower_s", "lower (s)"), compile_s: numberColumn("compile_s", "compile (s)"),
  verify_s: numberColumn("verify_s", "verify (s)"), setup_s: numberColumn("setup_s", "set-up (s)"), host_ms: numberColumn("host_ms", "host (ms)"), peak_memory_bytes: numberColumn("peak_memory_bytes", "peak memory", bytes),
  sm_clock_mhz: numberColumn("sm_clock_mhz", "SM clock (MHz)"), clock_spread: numberColumn("clock_spread", "clock's spread", (share) => percent(share, 1)), throttled: plainColumn("throttled", "throttled"), provider: { title: "provider", get: (row) => value("provider", row), show: (name, row) => [name, value("provider_version", row)].filter(Boolean).join(" ") },
  kernel_names: { ...plainColumn("kernel_names", "device kernels", (text) => (text || "").split("\n")[0].slice(0, 80)), wide: true }, load_imbalance: numberColumn("load_imbalance", "imbalance"), exposed_comm_ms: numberColumn("exposed_comm_ms", "exposed (ms)"),
  comm_bytes: numberColumn("comm_bytes", "sent per rank", bytes), padding_tokens: numberColumn("padding_tokens", "padding (tokens)"), mesh: plainColumn("mesh", "mesh"), env: plainColumn("env", "environment"),
};
const sorting = { name: null, down: false };
let firstRow = 0, columnNames = COLUMN_SETS.speed;

function searched() {
  const words = document.getElementById("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return filtered();
  const text = (row) => ["label", "mask", "pass", "status", "reason_code", "reason", "case_id", "device", "run", "provider"].map((name) => value(name, row) || "").join(" ").toLowerCase() + " " + sizeText(row).toLowerCase();
  return filtered().filter((row) => { const held = text(row); return words.every((word) => held.includes(word)); });
}
function sorted(rows) {
  if (!sorting.name) return rows;
  const { get } = COLUMNS[sorting.name], keys = new Map(rows.map((row) => [row, get(row)]));
  const missing = (key) => key === null || key === undefined || key === "";
  const compare = (one, other) => (typeof one === "number" ? one - other : String(one).localeCompare(String(other)));
  return [...rows].sort((one, other) => { // what has no value stands last either way
    const [left, right] = [keys.get(one), keys.get(other)];
    if (missing(left) || missing(right)) return missing(left) - missing(right) || one - other;
    return (sorting.down ? compare(right, left) : compare(left, right)) || one - other;
  });
}
function showHead() {
  const cells = columnNames.map((name) => {
    const state = sorting.name === name ? (sorting.down ? "descending" : "ascending") : "none";
    return element("th", { scope: "col", "aria-sort": state, class: COLUMNS[name].number ? "n" : null, "data-column": name }, element("button", { type: "button", on: { click: () => sortBy(name) } }, COLUMNS[name].title));
  });
  const several = columns.device.texts.length > 1 ? [element("th", { scope: "col" }, "device")] : [];
  document.querySelector("#case-table thead").replaceChildren(element("tr", {}, element("th", { scope: "col" }, "case"), ...several, ...cells));
}
function sortBy(name) {
  sorting.down = sorting.name === name ? !sorting.down : Boolean(COLUMNS[name].number && name !== "size");
  sorting.name = name;
  firstRow = 0;
  showTable();
  document.querySelector(`#case-table th[data-column="${name}"] button`).focus();
}
function tableRow(row) {
  // A case that is not ok has no numbers: its reason stands in their place.
  const numbers = columnNames.slice(columnNames.indexOf("status") + 1), told = isOk(row) ? null : (value("reason", row) || value("reason_code", row) || "").split("\n")[0].slice(0, 240);
  const cells = (told === null ? columnNames : columnNames.slice(0, -numbers.length)).map((name) => {
    const column = COLUMNS[name], text = column.show(column.get(row), row);
    if (name === "status") return element("td", {}, element("span", { class: "status " + (isOk(row) ? "" : ["unsupported", "skipped"].includes(value("status", row)) ? "soft" : "bad") }, text, value("doubts", row) ? " \u26a0" : ""));
    if (name === "label") return element("td", {}, swatch(value("label", row)), " ", text);
    return column.wide ? element("td", { class: "wide" }, element("div", {}, text)) : element("td", { class: column.number ? "n" : null }, text);
  });
  if (told !== null) cells.push(element("td", { class: "wide", colspan: numbers.length }, element("div", {}, told)));
  const several = columns.device.texts.length > 1 ? [element("td", {}, value("device", row))] : [];
  const name = `${value("label", row)}, ${value("mask", row)}, ${value("pass", row)}, ${sizeText(row)}`;
  return element("tr", {}, element("td", {}, element("button", { type: "button", "data-row": row, "aria-label": `Details and samples of ${name}` }, "open")), ...several, ...cells);
}
function showTable() {
  const rows = sorted(searched());
  firstRow = Math.min(firstRow, Math.max(0, Math.floor((rows.length - 1) / PAGE_ROWS) * PAGE_ROWS));
  const shown = rows.slice(firstRow, firstRow + PAGE_ROWS);
  showHead();
  document.querySelector("#case-table tbody").replaceChildren(...shown.map(tableRow));
  document.getElementById("case-caption").textContent = rows.length ? `Cases ${(firstRow + 1).toLocaleString("en-US")} to ${(firstRow + shown.length).toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")}; a column's title sorts by it` : "No case fits the filters and the search";
  const turn = (text, to, off) => element("button", { type: "button", disabled: off, on: { click: () => { firstRow = to; showTable(); document.getElementById("cases").scrollIntoView(); } } }, text);
  document.getElementById("pager").replaceChildren(...(rows.length > PAGE_ROWS ? [turn("Previous", firstRow - PAGE_ROWS, firstRow === 0), turn("Next", firstRow + PAGE_ROWS, firstRow + PAGE_ROWS >= rows.length), turn("Last", Math.floor((rows.length - 1) / PAGE_ROWS) * PAGE_ROWS, firstRow + PAGE_ROWS >= rows.length)] : []));
}
function csv() { // every column of the page, for the rows that the filters and the search leave; null is empty
  const names = Object.keys(columns);
  const quote = (held) => { const text = held === null || held === undefined ? "" : String(held); return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  return [names.join(","), ...sorted(searched()).map((row) => names.map((name) => quote(value(name, row))).join(","))].join("\n") + "\n";
}
async function copyText(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch (refused) { // a page from a file may lack the clipboard
    const box = element("textarea", {});
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    return done;
  }
}
function startTable() {
  document.getElementById("case-tools").hidden = false;
  if (!payload.groups.length) { document.getElementById("column-set").value = "trust"; columnNames = COLUMN_SETS.trust; } // without speeds
  document.getElementById("search").addEventListener("input", () => { firstRow = 0; showTable(); });
  document.getElementById("column-set").addEventListener("change", (event) => { columnNames = COLUMN_SETS[event.target.value]; sorting.name = null; showTable(); });
  const said = document.getElementById("copied");
  document.getElementById("copy-csv").addEventListener("click", async () => { said.textContent = (await copyText(csv())) ? `copied ${searched().length.toLocaleString("en-US")} rows` : "the browser refused the clipboard; use Save CSV"; });
  document.getElementById("save-csv").addEventListener("click", () => {
    const link = element("a", { href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })), download: "cases.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
