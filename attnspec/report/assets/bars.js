// Grouped bars with a line through each implementation's bars, whiskers, marks and published points: one custom series each.
function niceTop(most) { // a round end of the axis and the step of its ticks
  if (!(most > 0)) return [1, 1];
  const rough = most / 8, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * size).find((part) => part >= rough);
  return [Math.ceil((most * 1.04) / step) * step, step];
}
function barOption(rows, peak) {
  const sizes = [...new Map(rows.map((row) => [sizeKey(row), row])).entries()].sort((one, other) => one[0] - other[0]);
  const place = new Map(sizes.map(([key], index) => [key, index]));
  const labels = inOrder(new Set(rows.map((row) => value("label", row))));
  if (!labels.length) return null;
  const tall = (row) => (isOk(row) ? value("tflops_per_gpu", row) : 0) || 0;
  const tallest = Math.max(0, ...rows.map(tall), ...rows.map((row) => payload.published[row] || 0));
  const reach = Math.max(tallest, ...rows.filter(isOk).map((row) => Math.min((value("tflops_ci_high", row) || 0) / value("cp_size", row), 1.5 * tallest)));
  const [top, step] = niceTop(reach);
  const series = labels.map((label, index) => {
    const held = rows.filter((row) => value("label", row) === label).sort((one, other) => sizeKey(one) - sizeKey(other));
    const data = held.map((row) => ({ value: [place.get(sizeKey(row)), tall(row)], row }));
    return { type: "custom", name: label, data, clip: true, z: 3, animation: false, renderItem: barItem(held, label, index, labels.length, top, place), encode: { x: 0, y: 1 } };
  });
  const names = sizes.map(([, row]) => (value("level", row) === "distributed" ? `${value("cp_size", row)} ${RANK}s\n${count(value("seqlen", row))}` : count(value("seqlen", row))));
  const axes = [{ type: "value", min: 0, max: top, interval: step, name: `TFLOP/s per ${RANK}`, nameGap: 10, ...merged({ nameTextStyle: { align: "left" } }) }];
  if (peak && tallest > 0) axes.push({ type: "value", min: 0, max: (top / peak) * 100, name: "% of bf16 peak", nameGap: 10, ...merged({ nameTextStyle: { align: "right" }, splitLine: { show: false }, axisLabel: { color: style("--quiet"), formatter: (one) => String(Math.round(one)), showMaxLabel: false } }) });
  return {
    animation: false, grid: { left: 8, right: 8, top: 34, bottom: 8, containLabel: true }, tooltip: { ...tooltipBox(), formatter: (event) => caseTip(event.data.row) },
    xAxis: { type: "category", data: names, ...merged({ axisTick: { show: false }, axisLabel: { lineHeight: 14 } }) }, yAxis: axes, series,
  };
}
function merged(more) {
  const made = axisLook();
  for (const [key, held] of Object.entries(more)) made[key] = { ...(made[key] || {}), ...held };
  return made;
}
function barItem(held, label, index, total, top, place) {
  return (params, api) => {
    const row = held[params.dataIndex], band = api.size([1, 0])[0], width = (band * 0.86) / total;
    const offset = (index - (total - 1) / 2) * width;
    const at = (x, y) => { const point = api.coord([x, y]); return [point[0] + offset, point[1]]; };
    const [x, y] = at(api.value(0), api.value(1)), base = at(api.value(0), 0)[1], children = [];
    if (isOk(row)) {
      children.push({ type: "rect", shape: { x: x - width * 0.46, y, width: width * 0.92, height: base - y }, style: { fill: fillOf(label) }, emphasis: { style: { fill: mixed(colourOf(label), isDark() ? "#ffffff" : "#000000", 0.18) } } });
      const next = held.slice(params.dataIndex + 1).find(isOk);
      if (next !== undefined) {
        const end = at(place.get(sizeKey(next)), value("tflops_per_gpu", next));
        children.push({ type: "line", silent: true, shape: { x1: x, y1: y, x2: end[0], y2: end[1] }, style: { stroke: textColourOf(label), lineWidth: 1.4, opacity: 0.8 } });
      }
      const ranks = value("cp_size", row), low = value("tflops_ci_low", row), high = value("tflops_ci_high", row);
      if (low !== null && high !== null) {
        const [, up] = at(api.value(0), Math.min(high / ranks, top)), [, down] = at(api.value(0), low / ranks), cap = Math.min(3, width * 0.3);
        children.push({ type: "path", silent: true, shape: { pathData: `M${x - cap},${up}H${x + cap}M${x},${up}V${down}M${x - cap},${down}H${x + cap}` }, style: { stroke: style("--ink"), lineWidth: 1.1, fill: "none" } });
      }
    } else {
      children.push({ type: "rect", shape: { x: x - width / 2, y: base - 16, width, height: 16 }, style: { fill: "transparent" } });
      const covered = payload.published[row] ? base - at(api.value(0), payload.published[row])[1] : 99; // a low published value would cover the letter
      children.push({ type: "text", silent: true, style: { text: MARKS[value("status", row)] || "?", x, y: base - (covered < 22 ? covered + 9 : 3), align: "center", verticalAlign: "bottom", fill: textColourOf(label), font: `bold ${Math.max(8, Math.min(12, width * 1.2))}px system-ui, sans-serif` } });
    }
    const there = payload.published[row];
    if (there) {
      const [, mark] = at(api.value(0), there), half = Math.max(3, Math.min(5, width * 0.4));
      children.push({ type: "polygon", silent: true, shape: { points: [[x, mark - half * 1.5], [x + half, mark], [x, mark + half * 1.5], [x - half, mark]] }, style: { fill: "#ffffff", stroke: "#000000", lineWidth: 1.4 } });
    }
    return { type: "group", children };
  };
}
