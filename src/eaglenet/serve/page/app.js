// The page: one field, a grid of moments, filters, keys. The address bar holds the whole search.

import * as player from "./player.js";
import { card, element, waiting } from "./view.js";

const PAGE = 24;
const MOST = 200;

const form = document.querySelector("#search");
const field = document.querySelector("#query");
const results = document.querySelector("#results");
const status = document.querySelector("#status");
const more = document.querySelector("#more");
const welcome = document.querySelector("#welcome");
const filters = document.querySelector("#filters");
const filterCount = document.querySelector("#filter-count");

let hits = [];
let running = null;
let similarTo = null;
let wanted = PAGE;

const filled = () => {
  const parameters = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (name !== "q" && value.trim()) parameters.append(name, value.trim());
  }
  return parameters;
};

const say = (message, bad = false) => {
  status.textContent = message;
  status.classList.toggle("bad", bad);
};

const problem = async (answer) => {
  try {
    const { error } = await answer.json();
    return `${error.message} \u2014 ${error.hint}`;
  } catch {
    return `The service answered ${answer.status}.`;
  }
};

const showFilterCount = () => {
  const count = [...filled().keys()].length;
  filterCount.textContent = count;
  filterCount.hidden = !count;
};

const show = (found) => {
  hits = found;
  results.replaceChildren(...hits.map((hit) => card(hit, (one) => player.open(one, hits))));
  [...results.querySelectorAll(".card")].forEach((button, place) => {
    button.tabIndex = place ? -1 : 0; // One stop for Tab; arrows move inside the grid.
  });
};

const address = () => {
  const parameters = filled();
  if (similarTo) parameters.set("similar", similarTo);
  else if (field.value.trim()) parameters.set("q", field.value.trim());
  const text = parameters.toString();
  return text ? `/?${text}` : "/";
};

const search = async ({ remember = true } = {}) => {
  const query = field.value.trim();
  showFilterCount();
  running?.abort();
  if (remember && address() !== location.pathname + location.search) {
    history.pushState(null, "", address());
  }
  if (!query && !similarTo) {
    show([]);
    say("");
    more.hidden = true;
    welcome.hidden = false;
    document.title = "eaglenet";
    return;
  }
  welcome.hidden = true;
  document.title = `${similarTo ? "Similar moments" : query} \u00b7 eaglenet`;
  const parameters = filled();
  parameters.set("k", wanted);
  if (similarTo) parameters.delete("negative");
  else parameters.set("q", query);
  const path = similarTo ? `/api/similar/${encodeURIComponent(similarTo)}` : "/api/search";
  const mine = new AbortController();
  running = mine;
  say("Searching\u2026");
  results.setAttribute("aria-busy", "true");
  results.classList.add("busy");
  if (!hits.length) results.replaceChildren(...waiting(8));
  try {
    const answer = await fetch(`${path}?${parameters}`, { signal: mine.signal });
    if (answer.status === 401) {
      location.reload(); // The login page stands at the same address.
      return;
    }
    if (!answer.ok) throw new Error(await problem(answer));
    const body = await answer.json();
    show(body.hits);
    const count = `${body.hits.length} ${body.hits.length === 1 ? "moment" : "moments"}`;
    const what = similarTo ? "similar to the chosen one" : `in ${Math.round(body.milliseconds)} ms`;
    say(body.hits.length ? `${count} ${what}` : nothing());
    more.hidden = body.hits.length < wanted || wanted >= MOST;
  } catch (error) {
    if (error.name === "AbortError") return;
    show([]);
    more.hidden = true;
    say(error instanceof TypeError ? "The service cannot be reached. Is it still running?" : error.message, true);
  } finally {
    if (running === mine) {
      results.classList.remove("busy");
      results.removeAttribute("aria-busy");
    }
  }
};

const nothing = () => [...filled().keys()].length
  ? "No moment fits. Try fewer filters."
  : "No moment fits. Is anything indexed?";

const findSimilar = (hit) => {
  similarTo = hit.clip_id;
  wanted = PAGE;
  search();
  scrollTo({ top: 0 });
};

const offer = (tag) => {
  const choice = form.elements.tag;
  if ([...choice.options].some((option) => option.value === tag)) return;
  const option = element("option", "", tag);
  option.value = tag;
  choice.append(option);
};

const restore = () => {
  const parameters = new URLSearchParams(location.search);
  if (parameters.get("tag")) offer(parameters.get("tag"));
  for (const input of form.elements) {
    const value = input.name && parameters.get(input.name);
    if (!value) continue;
    if (input.type === "checkbox") input.checked = true;
    else input.value = value;
  }
  similarTo = parameters.get("similar");
  wanted = PAGE;
  filters.open = filters.open || [...filled().keys()].length > 0;
  search({ remember: false });
};

const focusCard = (place) => {
  const cards = [...results.querySelectorAll("button.card")];
  if (!cards[place]) return false;
  cards.forEach((button) => { button.tabIndex = -1; });
  cards[place].tabIndex = 0;
  cards[place].focus();
  cards[place].scrollIntoView({ block: "nearest" });
  return true;
};

const columns = () => getComputedStyle(results).gridTemplateColumns.split(" ").length;

const moveInGrid = (event) => {
  const cards = [...results.querySelectorAll("button.card")];
  const place = cards.indexOf(document.activeElement);
  if (place < 0) return;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() };
  if (event.key in steps) {
    event.preventDefault();
    const target = place + steps[event.key];
    if (target < 0) field.focus();
    else focusCard(Math.min(target, cards.length - 1));
  } else if (event.key === "Home" || event.key === "End") {
    event.preventDefault();
    focusCard(event.key === "Home" ? 0 : cards.length - 1);
  } else if (event.key === "s") {
    findSimilar(hits[place]);
  } else if (event.key === "Escape") {
    field.focus();
    field.select();
  }
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    field.focus();
    field.select();
  } else if (event.target === field && event.key === "ArrowDown") {
    if (focusCard(0)) event.preventDefault();
  } else if (!typing) {
    moveInGrid(event);
  }
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  similarTo = null;
  wanted = PAGE;
  search();
});
filters.addEventListener("change", () => {
  wanted = PAGE;
  search();
});
document.querySelector("#clear").addEventListener("click", () => {
  const query = field.value;
  form.reset();
  field.value = query;
  search();
});
more.addEventListener("click", async () => {
  const place = hits.length;
  wanted = Math.min(MOST, wanted * 2);
  await search({ remember: false });
  focusCard(place);
});
addEventListener("popstate", () => {
  form.reset();
  restore();
});

player.setUp(findSimilar, (hit) => focusCard(hits.indexOf(hit)));

const duration = (hours) => {
  if (hours < 1) return `${Math.ceil(hours * 60)} min`;
  return `${hours < 10 ? hours.toFixed(1) : Math.round(hours)} hours`;
};

const setUp = async () => {
  try {
    const answer = await fetch("/api/info");
    if (!answer.ok) return;
    const info = await answer.json();
    const number = new Intl.NumberFormat();
    document.querySelector("#store").textContent =
      `${number.format(info.clips)} clips \u00b7 ${number.format(info.files)} files \u00b7 ` +
      `${duration(info.hours)} \u00b7 ${info.model}`;
    info.tags.forEach(offer);
    form.elements.tag.closest("label").hidden = !info.tags.length;
  } catch {
    say("The service cannot be reached. Is it still running?", true);
  }
};

// What was typed before this script came is kept.
restore();
setUp();
