// Charts beyond throughput: density, set-up, balance, exposure, scaling. Each is a field of points, by implementation.
const SPREAD_KINDS = [
  {
    title: "Density and efficiency", note: "How much speed is kept as a mask gets sparser. FLOPs count allowed pairs only.",
    x: { name: "density (log scale)", scale: "log", base: 2, to: 1, text: (one) => percent(one, one < 0.1 ? 1 : 0) }, y: { name: "share of bf16 peak", text: (one) => percent(one) },
    point: (row) => [value("density", row), value("efficiency", row)],
  },
  {
    title: "Set-up against steady time", note: "Lowering the mask and compiling, per pack, against one warm iteration. High and left: only worth it for masks that stay.",
    x: { name: "one iteration (ms, log scale)", scale: "log", base: 10, text: (one) => digits(one) }, y: { name: "set-up (ms, log scale)", scale: "log", base: 10, text: (one) => digits(one) },
    point: (row) => [value("time_ms_median", row), (1000 * ((value("lower_s", row) || 0) + (value("compile_s", row) || 0))) / value("num_packs", row) || null],
  },
  {
    title: "Load imbalance", note: "Largest over mean area of the ranks; 1 is balanced.", level: "distributed", joined: true, banded: true,
    x: { name: `${RANK}s that share a sequence`, text: String }, y: { name: "imbalance", text: (one) => digits(one), from: 1, to: (ends) => Math.max(1.2, ends.max) },
    point: (row) => [value("cp_size", row), value("load_imbalance", row)],
  },
  {
    title: "Exposed communication", note: "Share of an iteration that compute does not hide.", level: "distributed", joined: true, banded: true,
    x: { name: `${RANK}s that share a sequence`, text: String }, y: { name: "share of the time", text: (one) => percent(one) },
    point: (row) => [value("cp_size", row), value("exposed_comm_ms", row) === null ? null : Math.max(value("exposed_comm_ms", row), 0) / value("time_ms_median", row)],
  },
  {
    title: "Weak scaling", note: `TFLOP/s per ${RANK} as a share of the same strategy's on its fewest ${RANK}s, tokens per ${RANK} unchanged.`, level: "distributed", joined: true,
    x: { name: `${RANK}s that share a sequence`, scale: "log", base: 2, text: String }, y: { name: `of the fewest ${RANK}s' rate`, text: (one) => percent(one), from: 0 },
    point: (row, least) => [value("cp_size", row), value("tflops_per_gpu", row) / least],
  },
];
// Kernels and strategies have looks of their own, so they never share a chart.
const SPREADS = SPREAD_KINDS.flatMap((kind) => (kind.level ? [kind] : ["kernel", "distributed"].map((level) => ({ ...kind, level, title: columns.level.texts.length > 1 ? `${kind.title}, ${LEVEL_WORDS[level]}` : kind.title }))));
function scalingBase(rows) { // throughput per rank on the fewest ranks, by what must be the same
  const least = new Map();
  for (const row of rows) {
    const key = scalingKey(row), held = least.get(key);
    if (!held || value("cp_size", row) < held[0]) least.set(key, [value("cp_size", row), value("tflops_per_gpu", row)]);
  }
  return least;
}
const scalingKey = (row) => JSON.stringify(["run", "device", "label", "mask", "pass", "seqlen_per_rank", "shape"].map((name) => value(name, row)));
function spreadPoints(spread, rows) {
  const held = rows.filter((row) => isOk(row) && isCompared(row) && value("level", row) === spread.level);
  const least = spread.title === "Weak scaling" ? scalingBase(held) : null;
  const alone = least && new Set(held.map((row) => value("cp_size", row))).size < 2;
  const points = alone ? [] : held.map((row) => ({ row, value: spread.point(row, least && least.get(scalingKey(row))[1]) }));
  return points.filter(({ value: [x, y] }) => Number.isFinite(x) && Number.isFinite(y) && x !== null && y !== null && (spread.x.scale !== "log" || x > 0) && (spread.y.scale !== "log" || y > 0));
}
function spreadOption(spread, points) {
  const bands = [...new Set(points.map((point) => point.value[0]))].sort((one, other) => one - other);
  const labels = inOrder(new Set(points.map(({ row }) => value("label", row))));
  const axis = (side, ends) => ({
    type: side.scale === "log" ? "log" : "value", logBase: side.base || 10, name: side.name, nameLocation: "middle", nameGap: ends.gap, min: side.scale === "log" ? ends.low : side.from ?? 0, max: side.to ?? (side.scale === "log" ? ends.high : undefined),
    ...merged({ axisLabel: { formatter: side.text } }),
  });
  const ends = (part, side) => {
    const held = points.map((point) => point.value[part]), base = side.base || 10;
    return { low: base ** Math.floor(Math.log(Math.min(...held)) / Math.log(base) - 1e-9), high: base ** Math.ceil(Math.log(Math.max(...held)) / Math.log(base) + 1e-9) };
  };
  return {
    animation: false, grid: { left: 36, right: 26, top: 14, bottom: 30, containLabel: true }, tooltip: { ...tooltipBox(), formatter: (event) => spreadTip(spread, event.data) },
    xAxis: spread.banded ? bandAxes(spread.x, bands) : axis(spread.x, { ...ends(0, spread.x), gap: 28 }), yAxis: axis(spread.y, { ...ends(1, spread.y), gap: 46 }),
    series: labels.flatMap((label, index) => linesOf(spread, points.filter(({ row }) => value("label", row) === label)).map((held) => ({
      type: spread.joined ? "line" : "scatter", name: label, xAxisIndex: spread.banded ? 1 : 0, symbol: symbolOf(label), symbolSize: 10, showAllSymbol: true, lineStyle: { color: colourOf(label), width: 1.4, opacity: 0.75 },
      itemStyle: { color: colourOf(label), borderColor: style("--ink"), borderWidth: 0.6, opacity: 0.9 }, data: spread.banded ? held.map((point) => inBand(point, bands, index, labels.length)) : held,
    }))),
  };
}
// A band for each number of GPUs, in which strategies stand side by side, so that none hides another; the axis of places in bands is not shown.
const bandAxes = (side, bands) => [
  { type: "category", data: bands.map(side.text), name: side.name, nameLocation: "middle", nameGap: 28, ...merged({ axisTick: { show: false }, splitLine: { show: true } }) },
  { type: "value", min: 0, max: bands.length, show: false },
];
const inBand = (point, bands, index, total) => ({ ...point, value: [bands.indexOf(point.value[0]) + 0.5 + 0.8 * ((index + 0.5) / total - 0.5), point.value[1]], at: point.value[0] });
function linesOf(spread, points) { // of strategies, one line for each mask, pass and size; else one cloud
  if (!spread.joined) return [points];
  const lines = new Map();
  for (const point of [...points].sort((one, other) => one.value[0] - other.value[0])) lines.set(scalingKey(point.row), [...(lines.get(scalingKey(point.row)) || []), point]);
  return [...lines.values()];
}
function spreadTip(spread, data) {
  const tip = caseTip(data.row);
  tip.append(element("div", {}, element("span", {}, spread.y.name.split(" (")[0]), element("span", {}, spread.y.text(data.value[1]))));
  tip.append(element("div", {}, element("span", {}, spread.x.name.split(" (")[0]), element("span", {}, spread.x.text(data.at ?? data.value[0]))));
  return tip;
}
const spreadCards = new Map();
function showSpreads(rows) {
  let any = false;
  for (const spread of SPREADS) {
    const points = spreadPoints(spread, rows);
    const enough = new Set(points.map((point) => point.value[0])).size > 1 || (spread.joined && points.length);
    let card = spreadCards.get(spread);
    if (enough && !card) {
      card = element("article", { class: "card" }, element("h3", {}, spread.title), element("p", { class: "quiet" }, spread.note), element("div", { class: "legend" }), element("div", { class: "chart", role: "img", "aria-label": `${spread.title}. ${spread.note} The same numbers stand in the table of cases.` }));
      spreadCards.set(spread, card);
      document.getElementById("spreads").append(card);
    }
    if (!card) continue;
    card.hidden = !enough;
    any = any || enough;
    const box = card.querySelector(".chart");
    if (!enough) { drop(box); continue; }
    showLegend(card.querySelector(".legend"), inOrder(new Set(points.map(({ row }) => value("label", row)))), false, dot);
    chart(box, () => spreadOption(spread, points));
  }
  document.getElementById("more").hidden = !any;
}
function showLegend(box, labels, published = false, sign = swatch) {
  box.replaceChildren(...labels.map((label) => element("span", {}, sign(label), label)), ...(published ? [element("span", {}, element("span", { "aria-hidden": "true" }, "\u25c7"), "published page")] : []));
}
