// What pages do beyond links and forms. Nothing here is needed to read them.
"use strict";

// Another state of the page, of which one part is taken.
const swap = async (url, id, signal) => {
  const answer = await fetch(url, { signal, credentials: "same-origin" });
  if (!answer.ok) return false;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
  const old = document.getElementById(id);
  if (!found || !old) return false;
  old.replaceWith(found);
  return true;
};

// A list in which something is under way is read again; what has the focus keeps it, and a selection its text.
const isRead = (id) => {
  const chosen = getSelection();
  return !chosen.isCollapsed && document.getElementById(id)?.contains(chosen.anchorNode);
};
const again = async (id) => {
  const place = document.activeElement?.closest(`#${id}`) && document.activeElement;
  const rows = [...document.querySelectorAll(`#${id} a`)].indexOf(place);
  if (!(await swap(location.href, id))) return;
  const links = [...document.querySelectorAll(`#${id} a`)];
  (links.find((link) => place?.href === link.href) ?? links[rows])?.focus({ preventScroll: true });
};
const refresh = () => {
  const seconds = Number(document.querySelector("[data-refresh]")?.dataset.refresh);
  if (!seconds) return;
  setTimeout(async () => {
    if (!document.hidden && !isRead("lines")) await again("lines").catch(() => {});
    refresh();
  }, seconds * 1000);
};

// One comparison's progress, as the service tells it.
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const shown = (number) => number.toLocaleString("en");
const left = (live, seconds) => {
  for (const [name, unit] of [["hours", 3600], ["minutes", 60]]) {
    const n = seconds / unit;
    if (n >= 1.5) return fill(live.dataset[name], { n: n < 10 ? n.toFixed(1) : Math.round(n) });
  }
  return fill(live.dataset.seconds, { n: Math.max(Math.round(seconds), 1) });
};
const follow = (live) => {
  const statuses = JSON.parse(live.dataset.statuses);
  const events = new EventSource(live.dataset.events);
  events.addEventListener("progress", (event) => {
    const found = JSON.parse(event.data);
    live.querySelector(".status-now").textContent = statuses[found.status] ?? found.status;
    const rate = found.rate > 0 && fill(live.dataset.rate, { rate: shown(Number(found.rate.toFixed(1))) });
    const pace = [rate, found.eta_s && left(live, found.eta_s)];
    live.querySelector(".rate").textContent = pace.filter(Boolean).join(" · ");
    for (const [arm, n] of Object.entries(found.answered)) {
      const place = live.querySelector(`dd[data-arm="${arm}"]`);
      if (found.n_requests === null) continue;
      const bar = place.querySelector("progress");
      bar.max = found.n_requests;
      const lost = found.unanswered[arm];
      bar.value = n + lost;
      const numbers = [fill(live.dataset.arm, { n: shown(n), total: shown(found.n_requests) })];
      if (lost) numbers.push(fill(live.dataset.unanswered, { n: shown(lost) }));
      place.querySelector(".numbers").textContent = numbers.join(" · ");
    }
  });
  events.addEventListener("end", () => {
    events.close();
    location.reload();
  });
};

// A part of a page that takes a moment, asked for again until it is there.
const TRIES = 60;
const fillIn = async (id, tries = TRIES) => {
  const url = document.getElementById(id)?.dataset.fill;
  if (!url || !tries) return;
  const is = await swap(url, id).catch(() => false);
  setTimeout(() => fillIn(id, tries - 1), is ? 500 : 2000);
};

const copy = async (button) => {
  const source = document.getElementById(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
    const said = button.textContent;
    button.textContent = button.dataset.done;
    setTimeout(() => (button.textContent = said), 1500);
  } catch {
    getSelection().selectAllChildren(source);
  }
};

// The calculator answers while it is changed.
const calculate = (form) => {
  let timer;
  let running;
  const ask = async () => {
    if (!form.checkValidity()) return;
    running?.abort();
    running = new AbortController();
    const url = `${form.action}?${new URLSearchParams(new FormData(form))}`;
    document.getElementById("figures").setAttribute("aria-busy", "true");
    try {
      if (await swap(url, "figures", running.signal)) history.replaceState(null, "", url);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  form.addEventListener("input", (event) => {
    const other = document.getElementById(event.target.dataset.with);
    if (other) other.value = event.target.value;
    clearTimeout(timer);
    timer = setTimeout(ask, 200);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
};

// Arrows go from one shaded token to the next: a stop of the tab key for each would be too many.
const step = (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  const tokens = [...event.currentTarget.querySelectorAll(".token")];
  const at = tokens.indexOf(document.activeElement);
  const next = tokens[at < 0 && by < 0 ? tokens.length - 1 : at + by];
  if (!next) return;
  event.preventDefault();
  next.focus();
};

refresh();
fillIn("extracted");
for (const live of document.querySelectorAll("[data-events]")) follow(live);
for (const one of document.querySelectorAll("button.copy")) one.addEventListener("click", () => copy(one));
for (const form of document.querySelectorAll("form#plan")) calculate(form);
for (const answer of document.querySelectorAll(".tokens pre")) answer.addEventListener("keydown", step);
for (const mark of document.querySelectorAll("pre.answer mark")) {
  const box = mark.closest("pre");
  if (box.scrollHeight > box.clientHeight) box.scrollTop = mark.offsetTop - box.clientHeight / 3;
}
