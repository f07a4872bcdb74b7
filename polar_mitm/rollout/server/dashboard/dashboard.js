"use strict";
// Looks at the server every two seconds. Every text goes into the page as text: much of it comes from models and agents.

const PERIOD_MS = 2000;
const STAGES = ["queued", "assigned", "waiting", "preparing", "ready", "running", "grading"];
const KEPT = 4000; // rewards drawn
const rewards = [];
let after = 0;
let clock = null; // the server's
let chosenTask = null;
let chosenSession = null;

// Without the user and password that the page's own address may have: fetch takes none.
const here = location.origin + location.pathname.replace(/[^/]*$/, "");

const at = (id) => document.getElementById(id);

async function get(path) {
  const response = await fetch(here + path, { headers: { Accept: "application/json" } });
  if (!response.ok) throw new Error(`${path}: HTTP ${response.status}`);
  return response.json();
}

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (kind) made.className = kind;
  return made;
}

function table(id, heads, rows) {
  const head = element("tr");
  for (const [text, kind] of heads) head.append(element("th", text, kind));
  const lines = rows.map((cells) => {
    const line = element("tr");
    cells.forEach((cell, place) => {
      const kind = heads[place][1];
      if (cell instanceof Node) {
        const box = element("td", null, kind);
        box.append(cell);
        line.append(box);
      } else if (Array.isArray(cell)) line.append(element("td", cell[0], cell[1]));
      else line.append(element("td", cell === null || cell === undefined ? "-" : cell, kind));
    });
    return line;
  });
  const top = element("thead");
  top.append(head);
  const body = element("tbody");
  body.append(...lines);
  at(id).replaceChildren(top, body);
}

function button(text, act) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

const number = (value) => (value === null || value === undefined ? "-" : Number(value).toFixed(2));
const seconds = (from, to) => (from && to ? `${(to - from).toFixed(1)} s` : "-");

function showOverview(seen) {
  const tasks = Object.values(seen.tasks).reduce((sum, count) => sum + count, 0);
  const live = Object.values(seen.stages).reduce((sum, count) => sum + count, 0);
  const gateways = Object.entries(seen.gateways).map(([state, count]) => `${count} ${state}`).join(", ") || "none";
  const tiles = [
    ["tasks", tasks], ["tasks running", seen.tasks.running || 0], ["sessions not done", live],
    ["sessions done", seen.sessions_done], ["gateways", gateways],
    ["callbacks waiting", seen.callbacks_pending], ["callbacks given up", seen.callbacks_dead],
  ];
  at("tiles").replaceChildren(...tiles.map(([name, value]) => {
    const tile = element("li", name);
    tile.prepend(element("b", value));
    return tile;
  }));
  const most = Math.max(1, ...STAGES.map((stage) => seen.stages[stage] || 0));
  at("stages").replaceChildren(...STAGES.flatMap((stage) => {
    const count = seen.stages[stage] || 0;
    const bar = element("i", null, count ? "" : "none");
    bar.style.width = `${(100 * count) / most}%`;
    return [element("span", stage), bar, element("span", count)];
  }));
}

function showRewards() {
  if (!rewards.length) return;
  const means = [];
  let sum = 0;
  const width = Math.max(1, Math.min(50, Math.ceil(rewards.length / 10)));
  rewards.forEach((reward, place) => {
    sum += reward - (place >= width ? rewards[place - width] : 0);
    means.push(sum / Math.min(place + 1, width));
  });
  const low = Math.min(0, ...means), high = Math.max(1, ...means);
  const x = (place) => (means.length === 1 ? 300 : (600 * place) / (means.length - 1));
  const y = (mean) => 135 - (130 * (mean - low)) / (high - low);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", means.map((mean, place) => `${place ? "L" : "M"}${x(place).toFixed(1)} ${y(mean).toFixed(1)}`).join(""));
  at("rewards").replaceChildren(path);
  const last = means[means.length - 1];
  const count = rewards.length === 1 ? "1 reward" : `${rewards.length} rewards`;
  const mean = width === 1 ? "the last is" : `the mean of the last ${width} is`;
  at("rewards-note").textContent = `${count}; ${mean} ${last.toFixed(2)}, drawn from ${low} to ${high}`;
}

async function readRewards() {
  for (let page = 0; page < 20; page += 1) {
    const answer = await get(`v1/results?after=${after}&limit=200`);
    const found = answer.items || answer.results || [];
    for (const result of found) {
      after = Math.max(after, result.seq);
      if (typeof result.session.reward === "number") rewards.push(result.session.reward);
    }
    if (found.length < 200) break;
  }
  rewards.splice(0, Math.max(0, rewards.length - KEPT));
}

function showGateways(gateways) {
  const heads = [["name"], ["state"], ["held", "number"], ["holds at most", "number"], ["stages"], ["policy"], ["last seen"]];
  table("gateways", heads, gateways.map((one) => [
    one.name, [one.state, one.state], one.held, one.capacity,
    Object.entries(one.stages).map(([stage, count]) => `${stage} ${count}`).join(", "),
    one.policy_version, new Date(1000 * one.last_seen_at).toLocaleTimeString(),
  ]));
}

function showTasks(tasks) {
  const heads = [["task"], ["status"], ["reward", "number"], ["done", "number"], ["samples", "number"], ["usable", "number"], ["live", "number"]];
  table("tasks", heads, tasks.map((task) => {
    const counts = task.samples;
    const done = counts.completed + counts.failed + counts.timeout + counts.cancelled + counts.error;
    const name = button(task.task_id, () => { chosenTask = task.task_id; chosenSession = null; look(); });
    return [name, [task.status, task.status], number(task.mean_reward), done, task.num_samples, counts.usable, counts.live];
  }));
}

async function showTask() {
  at("task-section").hidden = chosenTask === null;
  if (chosenTask === null) return;
  const page = await get(`v1/tasks/${encodeURIComponent(chosenTask)}/sessions?limit=200`);
  at("task-title").textContent = `Task ${chosenTask}`;
  at("task-note").textContent = `${page.items.length} sessions${page.next_cursor ? " shown, and there are more" : ""}`;
  // On a phone the first ones are seen without scrolling.
  const heads = [["sample", "number"], ["attempt", "number"], ["status"], ["reward", "number"], ["ran", "number"], ["session"], ["gateway"], ["why"]];
  table("sessions", heads, page.items.map((one) => {
    const choose = () => { chosenSession = one.session_id; look(); };
    const now = one.stage === "running" ? clock : null;
    const ran = seconds(one.times.running_at, one.times.grading_at || one.times.finished_at || now);
    return [button(one.sample, choose), one.attempt, [one.status || one.stage, one.status || ""], number(one.reward), ran, button(one.session_id, choose), one.gateway, one.status_reason || ""];
  }));
}

async function showSession() {
  at("session-section").hidden = chosenSession === null;
  if (chosenSession === null || at("session-title").dataset.session === chosenSession) return;
  at("session-title").textContent = `Session ${chosenSession}`;
  const answer = await fetch(`${here}v1/sessions/${encodeURIComponent(chosenSession)}/files/trajectory.json`);
  if (!answer.ok) {
    at("session-note").textContent = "it has no trajectory yet";
    table("turns", [["turn"]], []);
    return;
  }
  at("session-title").dataset.session = chosenSession;
  const trajectory = await answer.json();
  const bins = Object.entries(trajectory.ledger.bins).filter(([, count]) => count).map(([bin, count]) => `${bin} ${count}`);
  at("session-note").textContent =
    `${trajectory.traces.length} traces; sampled ${trajectory.ledger.sampled} tokens: ${bins.join(", ") || "none"}` +
    (trajectory.masked ? `; masked: ${trajectory.masked}` : "");
  const heads = [["trace", "number"], ["turn", "number"], ["relation"], ["kind"], ["tokens", "number"], ["trained", "number"], ["mean logprob", "number"], ["finish"]];
  table("turns", heads, trajectory.traces.flatMap((trace, place) => trace.turns.map((turn, count) => {
    const mask = trace.loss_mask.slice(turn.start, turn.end);
    const logprobs = trace.logprobs.slice(turn.start, turn.end);
    const trained = mask.reduce((sum, one) => sum + one, 0);
    const mean = logprobs.length ? logprobs.reduce((sum, one) => sum + one, 0) / logprobs.length : null;
    return [place, count + 1, turn.relation, turn.kind, turn.end - turn.start, trained, number(mean), turn.finish_reason];
  })));
}

let looking = false;
async function look() {
  if (looking) return;
  looking = true;
  try {
    const [overview, gateways, tasks] = await Promise.all([get("v1/overview"), get("v1/gateways"), get("v1/tasks?limit=50"), readRewards()]);
    clock = overview.at;
    showOverview(overview);
    showGateways(Array.isArray(gateways) ? gateways : gateways.items);
    showTasks(tasks.items);
    showRewards();
    await showTask();
    await showSession();
    at("state").textContent = `version ${overview.version}, ${new Date(1000 * overview.at).toLocaleTimeString()}`;
    at("state").className = "";
  } catch (error) {
    at("state").textContent = `the server does not answer: ${error.message}`;
    at("state").className = "bad";
  } finally {
    looking = false;
  }
}

look();
setInterval(look, PERIOD_MS);
