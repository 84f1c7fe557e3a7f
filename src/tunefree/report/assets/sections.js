const MAIN = { test_accuracy: "Test accuracy", test_loss: "Test loss", train_loss: "Training loss" };
const NAMES = {
  lr: "Local step size (mean over clients)", server_step: "Server step", mu: "Proximal weight μ",
  distance: "Distance from the start", global_loss: "Global loss at the server", trials: "Line search: trials per step",
  sparsity: "Sparsity (share of zeros)", stationarity: "Stationarity", penalty: "Penalty", proxes: "Proximal maps",
  counted_up: "Bytes sent up, values alone", client_worst: "Worst client", client_spread: "Spread over clients",
  zeta: "Gradient dissimilarity ζ", dissimilarity: "Dissimilarity of clients",
};
const HETEROGENEITY = /^(zeta|dissimilarity|heterogeneity)/;
const MEASURED = /^(validation_|client_|test_)/;
// A method that was tuned is called so wherever its label does not say it.
const findings = (data, group) => (data.comparison && data.comparison.rows[group.label]) || {};
const nameOfGroup = (data, group) => (findings(data, group).tuning && !/tuned/.test(group.label) ? `${group.label} (tuned)` : group.label);
const nameOf = (name) => NAMES[name] || (name.charAt(0).toUpperCase() + name.slice(1)).replaceAll("_", " ");

function columns(data, test) {
  const found = new Set(data.groups.flatMap((g) => Object.keys(g.curves)).filter((n) => !(n in MAIN) && test(n)));
  const known = Object.keys(NAMES).filter((n) => found.has(n));
  return [...known, ...[...found].filter((n) => !(n in NAMES)).sort()];
}

function multiples(data, names) {
  const made = names.map((name) => curveChart(data, name, nameOf(name)));
  return [el("div", { class: "charts small" }, made.map((m) => m.node)), () => made.forEach((m) => m.show())];
}

const total = (group, name, part = 0) => (group.totals[name] ? group.totals[name][part] : null);
function around(group, name, text) {
  const found = group.totals[name];
  if (!found) return ["–"];
  const [middle, sd, n] = found;
  if (n < 2) return [text(middle)];
  if (text === percent) return [(100 * middle).toFixed(2), el("span", { class: "sd" }, ` ± ${percent(sd)}`)];
  const digits = sd > 0 && sd < 1e3 && sd > 1e-6 ? Math.max(0, 1 - Math.floor(Math.log10(sd))) : null; // two of the deviation
  const [m, s] = digits === null ? [text(middle), text(sd)] : [middle.toFixed(digits), sd.toFixed(digits)];
  return [m, el("span", { class: "sd" }, ` ± ${s}`)];
}

const HEADLINE = [
  { head: "Final accuracy", name: "test_accuracy", best: Math.max, of: (g) => total(g, "test_accuracy"), show: (g) => around(g, "test_accuracy", percent) },
  { found: "against" }, { found: "choose" }, { found: "tuning" },
  { head: "Best accuracy", name: "best_test_accuracy", best: Math.max, of: (g) => total(g, "best_test_accuracy"), show: (g) => around(g, "best_test_accuracy", percent) },
  { head: "Test loss", name: "test_loss", best: Math.min, of: (g) => total(g, "test_loss"), show: (g) => around(g, "test_loss", number) },
  { head: "Status", of: (g) => Object.keys(g.status).join(), text: true, show: (g) => Object.entries(g.status).map(([s, n]) => el("span", { class: `status ${/^[a-z ]+$/.test(s) ? s : ""}` }, n === g.runs ? s : `${n} ${s}`)) },
  { head: "Seeds", of: (g) => g.runs, show: (g) => [String(g.runs)] },
  { head: "Rounds", of: (g) => total(g, "rounds"), show: (g) => [`${number(total(g, "rounds"))}${g.asked && g.asked[0] > total(g, "rounds") ? ` of ${number(g.asked[0])}` : ""}`] },
  { head: "Sent up", name: "bytes_up", of: (g) => total(g, "bytes_up"), show: (g) => [bytes(total(g, "bytes_up"))] },
  { head: "Sent down", name: "bytes_down", of: (g) => total(g, "bytes_down"), show: (g) => [bytes(total(g, "bytes_down"))] },
  { head: "Gradients", name: "gradients", of: (g) => total(g, "gradients"), show: (g) => [count(total(g, "gradients"))] },
  { head: "Time", name: "seconds", of: (g) => total(g, "seconds"), show: (g) => [seconds(total(g, "seconds"))] },
  { found: "rounds" },
];

function headline(data) {
  const heads = data.comparison ? data.comparison.columns : {};
  const text = (g, key) => findings(data, g)[key] || "";
  const given = (c) => ({ ...c, head: heads[c.found].charAt(0).toUpperCase() + heads[c.found].slice(1), text: true, of: (g) => text(g, c.found), show: (g) => [el("span", { class: text(g, c.found).endsWith("*") ? "worse" : null }, text(g, c.found) || "–")] });
  const shown = HEADLINE.filter((c) => (c.found ? heads[c.found] : !c.name || data.groups.some((g) => g.totals[c.name]))).map((c) => (c.found ? given(c) : c));
  const all = [{ head: "Method", of: (g) => g.label, text: true, show: null }, ...shown];
  const order = data.groups.map((g, i) => i);
  if (state.sort) {
    const column = all.find((c) => c.head === state.sort.head);
    if (column) order.sort((a, b) => state.sort.sign * compare(column.of(data.groups[a]), column.of(data.groups[b])));
  }
  const head = all.map((c) => {
    const sorted = state.sort && state.sort.head === c.head;
    const turn = () => { state.sort = { head: c.head, sign: sorted ? -state.sort.sign : 1 }; box.replaceWith(headline(data)); };
    const names = c.name && data.groups.some((g) => total(g, c.name, 2) > 1) ? [c.name, `${c.name}_sd`] : c.name ? [c.name] : null;
    return el("th", { scope: "col", class: c.text ? "text" : null, "data-values": names && JSON.stringify(names), "aria-sort": sorted ? (state.sort.sign > 0 ? "ascending" : "descending") : null }, el("button", { type: "button", onclick: turn }, c.head));
  });
  const tops = new Map(shown.filter((c) => c.best && data.groups.length > 1).map((c) => [c, c.best(...data.groups.map(c.of).filter(isNumber))]));
  const rows = order.map((i) => {
    const group = data.groups[i];
    const cells = shown.map((c) => el("td", { class: [c.text ? "text" : "", tops.has(c) && c.of(group) === tops.get(c) ? "best" : ""].join(" ").trim() || null }, c.show(group)));
    shown.forEach((c, j) => {
      const pair = [total(group, c.name), total(group, c.name, 1)];
      if (c.name) cells[j].dataset.values = JSON.stringify(pair.slice(0, data.groups.some((g) => total(g, c.name, 2) > 1) ? 2 : 1));
      else if (c.found) cells[j].dataset.values = JSON.stringify([c.of(group)]);
    });
    const badge = nameOfGroup(data, group) !== group.label ? el("span", { class: "badge", title: text(group, "tuning") }, "tuned") : "";
    return el("tr", {}, el("td", { title: group.label, "data-values": JSON.stringify([group.label]) }, swatch(i), " ", group.label, badge && " ", badge), cells);
  });
  const table = el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
  const box = card("Methods", [saveTable("Results", () => table)], scroller("wide", table));
  box.id = "headline";
  return box;
}
const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (isNumber(a) ? a : Infinity) - (isNumber(b) ? b : Infinity));

function whoHasWhat(data) {
  const choice = el("select", { "aria-label": "Which deal of the data" }, data.pictures.map((p, i) => el("option", { value: i }, clip(p.names.join("; "), 60))));
  state.picture = Math.min(state.picture, data.pictures.length - 1);
  choice.value = state.picture;
  const inside = el("div", {});
  const show = () => {
    const p = data.pictures[state.picture];
    const n = p.clients.length;
    const width = 70 + 9 * n;
    const frame = (rows) => {
      const box = el("div", { class: "canvas" });
      box.style.minWidth = `min(${width}px, 60rem)`;
      box.style.height = `${rows}px`;
      return box;
    };
    const bubbles = p.labels ? frame(Math.min(900, 70 + 24 * p.labels[0].length)) : null;
    const bars = frame(170);
    const few = n < p.of ? `${n} of ${p.of} clients, evenly spaced` : `${n} clients`;
    inside.replaceChildren(
      el("p", { class: "quiet" }, `${few}. ${p.labels ? "The area of a disc is the number of samples of that class. " : ""}Below: samples per client.`),
      scroller("wide", el("div", {}, bubbles, bars)),
    );
    if (bubbles) drawBubbles(bubbles, p);
    drawSizes(bars, p);
  };
  choice.addEventListener("change", () => { state.picture = Number(choice.value); show(); });
  const title = "Samples of each class at each client";
  return [card(title, [el("span", { class: "tools" }, data.pictures.length > 1 ? choice : "", saveFigure(title, () => inside))], inside), show];
}

const side = (axis) => { axis.width = 84; };

function drawBubbles(box, p) {
  const most = Math.max(...p.labels.flat(), 1);
  const discs = p.labels.flatMap((row, i) => row.map((v, c) => ({ x: i, y: c, v })).filter((d) => d.v > 0));
  const radius = (c) => {
    const { chartArea: area } = c.chart;
    if (!area || !c.raw) return 1;
    const cell = Math.min(area.width / p.clients.length, area.height / p.labels[0].length);
    return Math.max(0.7, Math.sqrt(c.raw.v / most) * cell * 0.54);
  };
  const options = look();
  options.parsing = false;
  const nameOfClass = (v) => (p.classes && v in p.classes ? p.classes[v] : Number.isInteger(v) ? String(v) : "");
  options.scales = {
    x: { ...scale(false, "", (v) => p.clients[v] ?? ""), min: -0.7, max: p.clients.length - 0.3, afterBuildTicks: every(p.clients.length) },
    y: { ...scale(false, "Class", (v) => clip(nameOfClass(v), 10)), min: -0.7, max: p.labels[0].length - 0.3, afterFit: side, afterBuildTicks: every(p.labels[0].length) },
  };
  options.plugins.tooltip.callbacks = { label: (c) => `client ${p.clients[c.raw.x]}, class ${nameOfClass(c.raw.y)}: ${c.raw.v} samples` };
  const look_ = { data: discs, pointRadius: radius, pointHoverRadius: radius, backgroundColor: `${colour(0)}b8`, borderWidth: 0 };
  draw(box, { type: "scatter", data: { datasets: [look_] }, options }, "Samples of each class at each client");
}

function every(n) {
  const step = [1, 2, 5, 10, 20, 50, 100].find((s) => n / s <= 25) || 100;
  return (axis) => { axis.ticks = Array.from({ length: Math.ceil(n / step) }, (_, i) => ({ value: i * step })); };
}

function drawSizes(box, p) {
  const options = look();
  options.scales = {
    x: { ...scale(false, "Client", (v) => p.clients[v] ?? ""), min: -0.7, max: p.clients.length - 0.3, afterBuildTicks: every(p.clients.length), offset: false, grid: { display: false } },
    y: { ...scale(false, "Samples", count), beginAtZero: true, afterFit: side },
  };
  options.plugins.tooltip.callbacks = { title: (items) => `client ${p.clients[items[0].parsed.x]}`, label: (c) => `${c.parsed.y} samples` };
  const bars = { data: p.sizes.map((y, x) => ({ x, y })), backgroundColor: colour(2), barPercentage: 0.9, categoryPercentage: 0.9 };
  draw(box, { type: "bar", data: { datasets: [bars] }, options }, "Samples per client");
}
