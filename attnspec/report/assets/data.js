// What the page holds: columns by name, and a few ways of reading them.
const payload = JSON.parse(document.getElementById("payload").textContent);
const columns = payload.columns;
const numRows = payload.rows;

function value(name, row) {
  const column = columns[name];
  if (column.values) return column.values[row];
  const place = column.places[row];
  return place < 0 ? null : column.texts[place];
}
// What a rank runs on, for units: a GPU or a CPU rank; a rank where the page holds both.
const RANK = columns.rank.texts.length === 1 ? columns.rank.texts[0] : "rank";
const isOk = (row) => value("status", row) === "ok";
const allRows = Array.from({ length: numRows }, (_, row) => row);

function count(tokens) {
  if (tokens === null) return "";
  for (const [unit, sign] of [[1048576, "M"], [1024, "K"]]) if (tokens >= unit && tokens % unit === 0) return tokens / unit + sign;
  return String(tokens);
}
function digits(number, most = 4) {
  if (number === null || number === undefined) return "";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e6 || size < 1e-3) return number.toExponential(most - 2);
  return size >= 10 ** (most - 1) ? Math.round(number).toLocaleString("en-US") : String(Number(number.toPrecision(most)));
}
const percent = (share, places = 0) => (share === null ? "" : (share * 100).toFixed(places) + "%");
function bytes(amount) {
  if (amount === null) return "";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) { if (amount < 1024) return digits(amount, 3) + " " + unit; amount /= 1024; }
  return digits(amount, 3) + " TiB";
}
const MARKS = { unsupported: "X", oom: "M", wrong: "W", timeout: "T", crashed: "C", error: "E", skipped: "-" };
const LEVEL_WORDS = { kernel: "kernels", distributed: "context parallelism" };
const STATUS_WORDS = { ok: "ok", unsupported: "unsupported", oom: "out of memory", wrong: "wrong", timeout: "timeout", crashed: "crashed", error: "error", skipped: "not run" };

// Sizes: what a bar chart's groups stand over.
const sizeKey = (row) => value("cp_size", row) * 2 ** 40 + value("seqlen", row);
function sizeText(row) {
  return value("level", row) === "distributed" ? `${value("cp_size", row)} ${RANK}s, ${count(value("seqlen", row))}` : count(value("seqlen", row));
}

function decode(text, kind) {
  const raw = atob(text);
  const held = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place++) held[place] = raw.charCodeAt(place);
  return new kind(held.buffer);
}
let decoded = null;
function samplesOf(row) {
  const held = payload.samples;
  if (!decoded) {
    let start = 0;
    decoded = { ms: decode(held.ms, Float32Array), packs: decode(held.packs, Uint16Array), starts: held.counts.map((size) => (start += size) - size) };
  }
  const start = decoded.starts[row], end = start + held.counts[row];
  return { ms: decoded.ms.subarray(start, end), packs: decoded.packs.subarray(start, end), total: held.totals[row] };
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, held] of Object.entries(attributes)) {
    if (key === "on") for (const [event, act] of Object.entries(held)) made.addEventListener(event, act);
    else if (held === true) made.setAttribute(key, "");
    else if (held !== null && held !== undefined && held !== false) made.setAttribute(key, held);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
