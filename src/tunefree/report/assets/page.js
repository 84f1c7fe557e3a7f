const main = document.getElementById("main");
const start = document.getElementById("data").textContent;

function controls(data) {
  const axes = Object.keys(AXES).filter((a) => a === "rounds" || data.groups.some((g) => g.axes.at.some((r) => along(g, a)(r) > 0)));
  if (!axes.includes(state.axis)) state.axis = "rounds";
  const again = () => redraws.forEach((show) => show());
  const axis = el("select", { id: "axis" }, axes.map((a) => el("option", { value: a }, AXES[a].name)));
  axis.value = state.axis;
  axis.addEventListener("change", () => { state.axis = axis.value; again(); });
  const log = el("button", { type: "button", id: "log-x", class: "toggle", "aria-pressed": String(state.logX) }, "log x");
  log.addEventListener("click", () => { state.logX = !state.logX; log.setAttribute("aria-pressed", String(state.logX)); again(); });
  const bands = { range: "lowest to highest", sd: "± standard deviation", none: "none" };
  const band = el("select", { id: "band" }, Object.entries(bands).map(([v, t]) => el("option", { value: v }, t)));
  if (state.band === null) state.band = data.groups.length > 8 ? "none" : "range"; // many bands hide each other
  band.value = state.band;
  band.addEventListener("change", () => { state.band = band.value; again(); });
  const several = data.groups.some((g) => g.runs > 1);
  const names = data.groups.map((group, i) => {
    const shown = !state.hidden.has(group.label);
    const button = el("button", { type: "button", "aria-pressed": String(shown), title: group.label }, swatch(i), el("span", {}, nameOfGroup(data, group)));
    button.addEventListener("click", () => { toggle(group.label, state.hidden.has(group.label)); again(); });
    return button;
  });
  const toggle = (label, on) => {
    if (on) state.hidden.delete(label); else state.hidden.add(label);
    names[data.groups.findIndex((g) => g.label === label)].setAttribute("aria-pressed", String(on));
  };
  const everyone = (on) => el("button", { type: "button", class: "plain", onclick: () => { data.groups.forEach((g) => toggle(g.label, on)); again(); } }, on ? "show all" : "hide all");
  return el("div", { class: "controls" },
    el("div", { class: "bar" }, el("label", {}, "Against ", axis), log, several ? el("label", {}, "Band over seeds ", band) : "", data.groups.length > 3 ? el("span", {}, everyone(true), everyone(false)) : ""),
    el("div", { class: "legend", id: "legend" }, names));
}

function section(id, title, ...inside) {
  return el("section", { id, "aria-label": title }, el("h2", {}, title), ...inside);
}

function about(data) {
  const runs = data.groups.reduce((n, g) => n + g.runs, 0);
  const of = (name) => [...new Set(data.groups.map((g) => g.settings[name]).filter(Boolean))].join(" / ");
  const facts = [`${runs} ${runs === 1 ? "run" : "runs"}`, of("model.name") && `model ${of("model.name")} (${of("model.parameters")} parameters)`, of("data.clients") && `${of("data.clients")} clients, ${of("cohort")} a round`, of("device") && `on ${of("device")}`];
  return runs ? facts.filter(Boolean).join(" · ") : "Nothing to show so far.";
}

function render(data) {
  charts.forEach((c) => c.destroy());
  charts = [];
  redraws = [];
  setTheme();
  document.title = data.title;
  document.getElementById("title").textContent = data.title;
  document.getElementById("about").textContent = about(data);
  const parts = [], late = [], contents = [];
  const part = (id, title, ...inside) => { contents.push(el("a", { href: `#${id}` }, title)); return section(id, title, ...inside); };
  const add = (...about_it) => parts.push(part(...about_it));
  if (!data.groups.length) add("results", "Results", el("p", {}, "No runs yet."));
  else {
    const note = data.groups.some((g) => g.runs > 1) ? "Mean ± standard deviation over seeds; bytes, gradients and time are means of whole runs." : "";
    const lines = data.comparison ? data.comparison.lines : [];
    add("results", "Results", headline(data), el("p", { class: "quiet" }, note), lines.map((line) => el("p", { class: "quiet" }, line)));
    const names = Object.keys(MAIN).filter((n) => data.groups.some((g) => g.curves[n]));
    const made = names.map((n) => curveChart(data, n, MAIN[n]));
    late.push(() => made.forEach((m) => m.show()));
    const without = names.length && !names.includes("test_loss") ? el("p", { class: "quiet" }, "There is no test set; the training loss is the mean over the cohort's batches.") : "";
    const charted = names.length ? [controls(data), el("div", { class: "charts" }, made.map((m) => m.node)), without] : [el("p", {}, "No round has been played so far.")];
    const curves = part("curves", "Curves", ...charted);
    parts.push(curves);
    const own = columns(data, (n) => !HETEROGENEITY.test(n) && !MEASURED.test(n));
    const measured = columns(data, (n) => MEASURED.test(n));
    const apart = columns(data, (n) => HETEROGENEITY.test(n));
    const small = (list) => { const [node, show] = multiples(data, list); late.push(show); return node; };
    if (own.length) curves.append(part("method", "What the methods did", small(own))); // inside, so that the controls stay in view
    if (measured.length) curves.append(part("measured", "Further measurements", small(measured)));
    if (data.pictures.length || apart.length) {
      const inside = [];
      if (data.pictures.length) { const [node, show] = whoHasWhat(data); inside.push(node); late.push(show); }
      if (apart.length) inside.push(el("p", { class: "quiet" }, "Heterogeneity over rounds:"), small(apart));
      add("data", "Who has what", ...inside);
    }
    if (data.groups.some((g) => g.ledger.length)) { const [nodes, show] = ledger(data); add("bytes", "Communication", ...nodes); late.push(show); }
    if (data.tuning.some((t) => isNumber(t.accuracy) && Object.keys(COSTS).some((c) => t[c] > 0))) { const [node, show] = tuning(data); add("tuning", "Accuracy and cost, tuning included", node); late.push(show); }
    add("settings", "Settings", ...settings(data));
  }
  main.replaceChildren(...parts);
  document.getElementById("contents").replaceChildren(...contents);
  late.forEach((show) => show());
}

// Without a prototype: a column may be called `constructor`.
const bare = (_, v) => (v && typeof v === "object" && !Array.isArray(v) ? Object.assign(Object.create(null), v) : v);
let now = JSON.parse(start, bare);
render(now);
document.getElementById("theme").addEventListener("click", () => {
  state.theme = root.dataset.theme === "dark" ? "light" : "dark";
  render(now);
});
wish.addEventListener("change", () => render(now));

const pause = 1000 * Number(document.body.dataset.live);
if (pause > 0) {
  const lamp = el("p", { class: "quiet live", id: "live", role: "status" }, "live");
  document.getElementById("about").after(lamp);
  let seen = null;
  const look_again = async () => {
    try {
      const text = await (await fetch("data.json", { cache: "no-store" })).text();
      if (text !== seen) {
        now = JSON.parse(text, bare);
        if (seen !== null || text !== start) render(now);
        seen = text;
      }
      lamp.className = "quiet live";
      lamp.textContent = "live";
    } catch {
      lamp.className = "quiet live lost";
      lamp.textContent = "no longer connected";
    }
    setTimeout(look_again, pause);
  };
  setTimeout(look_again, pause);
}
