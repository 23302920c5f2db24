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

// Tables whose heads sort the rows that are shown.
const sorted = { column: -1, sign: 1 };
const key = (row, column) => row.cells[column].textContent.trim();
const compare = (a, b) => {
  const [x, y] = [a, b].map((text) => Number(text.replaceAll(",", "")));
  return a && b && !Number.isNaN(x) && !Number.isNaN(y) ? x - y : a.localeCompare(b);
};
const sort = (table) => {
  const { column, sign } = sorted;
  if (column < 0) return;
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => sign * compare(key(a, column), key(b, column)));
  table.tBodies[0].append(...rows);
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    if (place === column) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
};
const sortable = () => {
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        sorted.sign = sorted.column === place ? -sorted.sign : 1;
        sorted.column = place;
        sort(table);
      });
      head.replaceChildren(button);
    });
    sort(table);
  }
};

// A list in which something is under way is read again.
const refresh = () => {
  const seconds = Number(document.querySelector("[data-refresh]")?.dataset.refresh);
  if (!seconds) return;
  setTimeout(async () => {
    const focused = document.activeElement?.closest("#lines");
    if (!document.hidden && !focused && (await swap(location.href, "lines").catch(() => false))) sortable();
    refresh();
  }, seconds * 1000);
};

// One comparison's progress, as the service tells it.
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
const shown = (number) => number.toLocaleString("en");
const follow = (live) => {
  const statuses = JSON.parse(live.dataset.statuses);
  const events = new EventSource(live.dataset.events);
  events.addEventListener("progress", (event) => {
    const found = JSON.parse(event.data);
    live.querySelector(".status-now").textContent = statuses[found.status] ?? found.status;
    live.querySelector(".rate").textContent = found.rate ? fill(live.dataset.rate, { rate: shown(found.rate) }) : "";
    for (const [arm, n] of Object.entries(found.answered)) {
      const place = live.querySelector(`dd[data-arm="${arm}"]`);
      if (found.n_requests === null) continue;
      const bar = place.querySelector("progress");
      bar.max = found.n_requests;
      bar.value = n;
      place.querySelector(".numbers").textContent = fill(live.dataset.arm, { n: shown(n), total: shown(found.n_requests) });
    }
  });
  events.addEventListener("end", () => {
    events.close();
    location.reload();
  });
};

// Keys that go from item to item.
const KEYS = { n: "next", j: "next", p: "prev", k: "prev", u: "up" };
const step = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (event.target.closest("input, select, textarea, [contenteditable]")) return;
  const rel = KEYS[event.key];
  if (rel) document.querySelector(`main a[rel="${rel}"]`)?.click();
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

sortable();
refresh();
document.addEventListener("keydown", step);
for (const live of document.querySelectorAll("[data-events]")) follow(live);
for (const button of document.querySelectorAll("button.copy")) button.addEventListener("click", () => copy(button));
for (const form of document.querySelectorAll("form#plan")) calculate(form);
for (const mark of document.querySelectorAll("pre.answer mark")) {
  const box = mark.closest("pre");
  if (box.scrollHeight > box.clientHeight) box.scrollTop = mark.offsetTop - box.clientHeight / 3;
}
