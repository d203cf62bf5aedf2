// One colour, marker and pattern per implementation, as in the figures for papers.
const OTHER = { colour: "#8A8A8A", hatch: "", marker: "o" };
const lookOf = (label) => payload.looks[label] || OTHER;
function mixed(colour, towards, share) {
  const part = (text, place) => parseInt(text.slice(place, place + 2), 16);
  return "#" + [1, 3, 5].map((place) => Math.round(part(colour, place) * (1 - share) + part(towards, place) * share).toString(16).padStart(2, "0")).join("");
}
function brightness(colour) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16) / 255);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
function colourOf(label) {
  const colour = lookOf(label).colour;
  return isDark() && brightness(colour) < 0.34 ? mixed(colour, "#ffffff", 0.3) : colour;
}
function textColourOf(label) {
  const colour = colourOf(label);
  if (isDark()) return brightness(colour) < 0.5 ? mixed(colour, "#ffffff", 0.3) : colour;
  return brightness(colour) > 0.6 ? mixed(colour, "#000000", 0.45) : colour;
}
const polygon = (sides, turn, inner = 1) => {
  const points = [];
  const total = inner === 1 ? sides : sides * 2;
  for (let place = 0; place < total; place++) {
    const angle = turn + (2 * Math.PI * place) / total, reach = inner !== 1 && place % 2 ? inner : 1;
    points.push(`${(Math.cos(angle) * reach).toFixed(3)},${(Math.sin(angle) * reach).toFixed(3)}`);
  }
  return "path://M" + points.join("L") + "Z";
};
const SYMBOLS = {
  o: "circle", s: "rect", D: "diamond", "^": "triangle", v: polygon(3, Math.PI / 2), "<": polygon(3, Math.PI), ">": polygon(3, 0),
  p: polygon(5, -Math.PI / 2), h: polygon(6, Math.PI / 6), 8: polygon(8, Math.PI / 8), "*": polygon(5, -Math.PI / 2, 0.45),
  P: polygon(4, 0, 0.38), X: polygon(4, Math.PI / 4, 0.38),
  d: "path://M0,-1L0.6,0L0,1L-0.6,0Z", H: polygon(6, 0),
};
const symbolOf = (label) => SYMBOLS[lookOf(label).marker] || "circle";

const patternCache = new Map();
function patternOf(label) { // the hatch as a repeating tile, for bars that must be told apart without colour
  const colour = colourOf(label), hatch = lookOf(label).hatch, key = colour + hatch;
  if (!patternCache.has(key)) {
    const tile = document.createElement("canvas"), size = 12;
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.fillStyle = colour; pen.fillRect(0, 0, size, size);
    pen.strokeStyle = "rgba(255,255,255,.85)"; pen.lineWidth = 1.4;
    const line = (...ends) => { pen.beginPath(); pen.moveTo(ends[0], ends[1]); pen.lineTo(ends[2], ends[3]); pen.stroke(); };
    if (/[\/x]/.test(hatch)) { line(-2, 14, 14, -2); line(-2, 2, 2, -2); line(10, 14, 14, 10); }
    if (/[\\x]/.test(hatch)) { line(-2, -2, 14, 14); line(10, -2, 14, 2); line(-2, 10, 2, 14); }
    if (/[-+]/.test(hatch)) line(0, 6, 12, 6);
    if (/[|+]/.test(hatch)) line(6, 0, 6, 12);
    patternCache.set(key, tile);
  }
  return patternCache.get(key);
}
function swatch(label) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = colourOf(label);
  if (usePatterns()) made.style.backgroundImage = `url(${patternOf(label).toDataURL()})`;
  return made;
}
function dot(label) { // the marker of a label, as charts of points draw it
  const known = { circle: "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z", rect: "M-.85,-.85H.85V.85H-.85Z", diamond: "M0,-1L1,0L0,1L-1,0Z", triangle: "M0,-1L1,1H-1Z" };
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  for (const [key, held] of Object.entries({ viewBox: "-1.2 -1.2 2.4 2.4", width: 12, height: 12, "aria-hidden": "true" })) made.setAttribute(key, held);
  for (const [key, held] of Object.entries({ d: known[symbolOf(label)] || symbolOf(label).slice("path://".length), fill: colourOf(label), stroke: "currentColor", "stroke-width": 0.12 })) path.setAttribute(key, held);
  made.append(path);
  return made;
}
const usePatterns = () => document.getElementById("patterns").checked;
const fillOf = (label) => (usePatterns() ? { image: patternOf(label), repeat: "repeat" } : colourOf(label));
const labelOrder = Object.keys(payload.looks);
const inOrder = (labels) => [...labels].sort((one, other) => labelOrder.indexOf(one) - labelOrder.indexOf(other));
