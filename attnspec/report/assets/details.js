// One case: everything that is known of it, its samples, and how to get at all of them.
const DETAILS = [
  ["Result", ["status", "reason_code", "reason", "doubts"]],
  ["Speed", ["tflops_per_gpu", "tflops", "tflops_ci_low", "tflops_ci_high", "efficiency", "time_ms_median", "time_ms_p20", "time_ms_p80", "time_ms_ci_low", "time_ms_ci_high", "host_ms", "num_samples"]],
  ["Work", ["device", "run", "level", "shape", "seqlen", "cp_size", "seqlen_per_rank", "num_packs", "mask_area", "density", "flops", "padding_tokens", "mesh", "env"]],
  ["Set-up, memory and exchange", ["lower_s", "compile_s", "verify_s", "setup_s", "peak_memory_bytes", "comm_bytes", "load_imbalance", "exposed_comm_ms"]],
  ["Trust", ["verified_error", "verified_bound", "sm_clock_mhz", "clock_spread", "throttled", "provider", "provider_version", "kernel_names", "source", "image_digest", "case_id", "result_key"]],
];
const DETAIL_TEXT = { efficiency: (one) => percent(one, 1), density: (one) => percent(one, 2), clock_spread: (one) => percent(one, 1), peak_memory_bytes: bytes, comm_bytes: bytes };
function detailText(name, row) {
  const held = value(name, row);
  if (held === null) return "";
  if (DETAIL_TEXT[name]) return DETAIL_TEXT[name](held);
  return typeof held === "number" ? (Number.isInteger(held) ? held.toLocaleString("en-US") : digits(held, 5)) : String(held);
}
let detailsBox = null;
function openDetails(row) {
  const dialog = document.getElementById("details"), body = document.getElementById("details-body");
  document.getElementById("details-title").textContent = `${value("label", row)}: ${value("mask", row)}, ${value("pass", row)}, ${sizeText(row)}`;
  const parts = [];
  const samples = samplesOf(row);
  if (samples.ms.length) {
    detailsBox = element("div", { class: "chart", role: "img", "aria-label": `Time of ${samples.ms.length} iterations, median ${digits(value("time_ms_median", row))} ms` });
    parts.push(element("h3", {}, "Samples"), element("p", { class: "quiet" }, samples.ms.length < samples.total ? `${samples.ms.length} of ${samples.total} iterations, evenly chosen, in their order; all are in timings.parquet.` : `All ${samples.total} iterations, in their order.`), detailsBox);
  }
  for (const [title, names] of DETAILS) {
    const lines = names.map((name) => [name, detailText(name, row)]).filter(([, text]) => text !== "");
    if (payload.published[row] && title === "Speed") lines.push(["published, TFLOP/s per GPU", digits(payload.published[row])]);
    if (lines.length) parts.push(element("h3", {}, title), element("table", { class: "facts" }, element("tbody", {}, ...lines.map(([name, text]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, text), element("td", { class: "quiet doc" }, payload.docs[name] || ""))))));
  }
  const query = `SELECT * FROM 'timings.parquet' WHERE case_id = '${value("case_id", row)}' ORDER BY pack, round, iteration`;
  parts.push(element("h3", {}, "All samples, in DuckDB"), element("pre", {}, query));
  body.replaceChildren(...parts);
  if (!dialog.open) dialog.showModal();
  history.replaceState(null, "", `#case=${encodeURIComponent(value("case_id", row))}`);
  if (samples.ms.length) drawSamples(row, samples);
}
function drawSamples(row, samples) {
  const made = echarts.init(detailsBox, null, { renderer: "canvas" });
  const median = value("time_ms_median", row), packs = new Set(samples.packs).size;
  const hues = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
  made.setOption({
    animation: false, grid: { left: 26, right: 60, top: 30, bottom: 30, containLabel: true }, tooltip: { ...tooltipBox(), formatter: (event) => element("div", { class: "tip" }, `iteration ${event.value[0] + 1}, pack ${event.value[2]}: ${digits(event.value[1], 5)} ms`) },
    xAxis: { type: "value", name: "iteration", nameLocation: "middle", nameGap: 26, max: samples.ms.length, ...merged({ splitLine: { show: false } }) }, yAxis: { type: "value", scale: true, name: "ms", ...axisLook() },
    series: [{
      type: "scatter", symbolSize: 4, data: Array.from(samples.ms, (ms, place) => [place, ms, samples.packs[place]]), itemStyle: { color: (event) => hues[event.value[2] % hues.length], opacity: 0.75 },
      markLine: packs === 1 && median ? { silent: true, symbol: "none", data: [{ yAxis: median }], label: { formatter: "median", color: style("--quiet") }, lineStyle: { color: style("--quiet") } } : undefined,
    }],
  });
  document.getElementById("details").addEventListener("close", () => made.dispose(), { once: true });
}
function startDetails() {
  document.addEventListener("click", (event) => {
    const held = event.target.closest("[data-row]");
    if (held) openDetails(Number(held.dataset.row));
  });
  document.getElementById("details").addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  const asked = /^#case=(.+)$/.exec(location.hash);
  if (asked) {
    const row = allRows.find((one) => value("case_id", one) === decodeURIComponent(asked[1]));
    if (row !== undefined) openDetails(row);
  }
}
