// What a chart tells of one case. Built from elements, so that no name can be taken for markup.
function caseTip(row) {
  const tip = element("div", { class: "tip" });
  const line = (name, text) => text && tip.append(element("div", {}, element("span", {}, name), element("span", {}, text)));
  tip.append(element("b", {}, value("label", row)), element("small", {}, `${value("mask", row)}, ${value("pass", row)}, ${sizeText(row)}`));
  if (isOk(row)) {
    line(`TFLOP/s per ${RANK}`, digits(value("tflops_per_gpu", row)));
    const low = value("tflops_ci_low", row), high = value("tflops_ci_high", row), ranks = value("cp_size", row);
    if (low !== null) line("95% interval", `${digits(low / ranks)} to ${digits(high / ranks)}`);
    line("of bf16 peak", percent(value("efficiency", row), 1));
    line("time", digits(value("time_ms_median", row)) + " ms");
    line("samples", String(value("num_samples", row) ?? ""));
    const there = payload.published[row];
    if (there) line("published", `${digits(there)} (${(value("tflops_per_gpu", row) / there).toFixed(2)} times)`);
    if (value("doubts", row)) line("with care", value("doubts", row));
  } else {
    line("status", STATUS_WORDS[value("status", row)] || value("status", row));
    const reason = (value("reason", row) || value("reason_code", row) || "").split("\n")[0];
    if (reason) tip.append(element("div", {}, element("span", {}, reason.slice(0, 240))));
    if (payload.published[row]) line("published", digits(payload.published[row]));
  }
  return tip;
}
const tooltipBox = () => ({
  trigger: "item", confine: true, backgroundColor: style("--paper"), borderColor: style("--rule"), textStyle: { color: style("--ink") },
  extraCssText: "box-shadow:0 6px 24px rgb(0 0 0 / .18);border-radius:10px;",
});
const axisLook = () => ({
  axisLine: { lineStyle: { color: style("--quiet") } }, axisTick: { lineStyle: { color: style("--quiet") } },
  axisLabel: { color: style("--ink"), hideOverlap: true }, nameTextStyle: { color: style("--quiet") }, splitLine: { lineStyle: { color: style("--rule") } },
});

// Charts live while their card is near the screen; a change of theme or filters draws the living ones anew.
const living = new Map();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && !living.has(entry.target)) draw(entry.target);
}, { rootMargin: "300px" });
const recipes = new Map();
function chart(box, recipe) { recipes.set(box, recipe); watcher.observe(box); if (living.has(box)) draw(box); }
function draw(box) {
  const option = recipes.get(box)();
  if (!option) return;
  if (!living.has(box)) {
    const made = echarts.init(box, null, { renderer: "canvas" });
    made.on("click", (event) => { if (event.data && event.data.row !== undefined) openDetails(event.data.row); });
    living.set(box, made);
  }
  living.get(box).setOption(option, true);
}
function drop(box) {
  watcher.unobserve(box); recipes.delete(box);
  if (living.has(box)) { living.get(box).dispose(); living.delete(box); }
}
function redraw() { for (const box of living.keys()) draw(box); }
new ResizeObserver(() => { for (const made of living.values()) made.resize(); }).observe(document.documentElement);
