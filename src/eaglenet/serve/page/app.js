// The page: one field, a grid of moments, filters, keys. The address bar holds the whole search.

import * as address from "./address.js";
import * as browse from "./browse.js";
import * as compose from "./compose.js";
import * as help from "./help.js";
import * as picture from "./picture.js";
import * as player from "./player.js";
import * as selection from "./selection.js";
import { card, element, isMeasured, span, waiting } from "./view.js";
import { lineOf } from "./words.js";

const PAGE = 24;
const MOST = 200;
const NOTHING = 0.1; // Below it the best result is most likely none; as on the command line.

const form = document.querySelector("#search");
const field = document.querySelector("#query");
const heading = document.querySelector("#heading");
const lead = document.querySelector("#lead");
const chosen = document.querySelector("#chosen");
const results = document.querySelector("#results");
const status = document.querySelector("#status");
const more = document.querySelector("#more");
const welcome = document.querySelector("#welcome");
const filters = document.querySelector("#filters");
const filterCount = document.querySelector("#filter-count");
const notice = document.querySelector("#notice");
const language = document.querySelector("#language");

let hits = [];
let running = null;
let similarTo = null;
let asked = null; // The picture that is searched with.
let linked = ""; // Moments that a link names instead of a search.
let folder = "";
let wanted = PAGE;

const filled = () => {
  const parameters = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (name !== "q" && typeof value === "string" && value.trim()) parameters.append(name, value.trim());
  }
  return parameters;
};

const say = (message, bad = false, understood = "", hint = "") => {
  language.hidden = !hint;
  language.textContent = hint && `${hint[0].toUpperCase()}${hint.slice(1)}.`;
  notice.hidden = !understood;
  notice.firstElementChild.textContent = understood;
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

const play = (hit) => player.open(hit, hits);

const show = (found) => {
  hits = found;
  results.replaceChildren(...hits.map((hit) => {
    const line = hit.transcript?.length ? lineOf(hit.transcript[0]) : null;
    const item = card(hit, play, line);
    item.append(selection.tick(hit));
    return item;
  }));
  const doubtful = hits.findLastIndex((hit) => !isMeasured(hit) || hit.match !== "unlikely") + 1;
  if (doubtful && doubtful < hits.length) results.children[doubtful].before(element("li", "less", "Less likely"));
  results.hidden = !hits.length;
  [...results.querySelectorAll(".card")].forEach((button, place) => {
    button.tabIndex = place ? -1 : 0; // One stop for Tab; arrows move inside the grid.
  });
};

const remember = () => {
  const parameters = filled();
  if (linked) parameters.set("moments", linked);
  else if (similarTo) parameters.set("similar", similarTo);
  else if (compose.query() && !asked) parameters.set("q", compose.query());
  else if (folder) parameters.set("folder", folder);
  address.go(parameters);
};

const headline = (text, below = "") => {
  heading.textContent = text;
  lead.textContent = below;
  lead.hidden = !below;
};

// What the results are like: the clip or the picture that was chosen, with a way out.
const showChosen = (source, name, detail) => {
  const frame = element("img");
  frame.alt = "";
  frame.src = source;
  const text = element("div");
  text.append(element("strong", "", name), element("span", "", detail));
  const leave = element("button", "quiet", "Back to all files");
  leave.type = "button";
  leave.addEventListener("click", () => {
    forget();
    search();
  });
  chosen.replaceChildren(frame, text, leave);
  chosen.hidden = false;
};

const forget = () => {
  similarTo = null;
  linked = "";
  if (asked) URL.revokeObjectURL(asked.source);
  asked = null;
};

const showLook = async (query) => {
  chosen.hidden = true;
  if (similarTo) {
    headline("Similar moments");
    const id = similarTo;
    const answer = await fetch(`/api/clips/${encodeURIComponent(id)}`).catch(() => null);
    if (answer?.ok && similarTo === id) {
      const clip = await answer.json();
      showChosen(clip.thumbnail, clip.name, span(clip));
    }
  } else if (asked) {
    headline("Moments like a picture");
    showChosen(asked.source, asked.file.name || "Pasted picture", `${Math.ceil(asked.file.size / 1024)} KB`);
  } else if (linked) {
    headline("Shared moments");
  } else if (query) {
    headline(query.replace(/ within (\d+)s$/, (all, seconds) => (seconds % 60 ? all : ` within ${seconds / 60} min`)));
  } else {
    headline("Find the moment", "Say what should be seen, in plain words, or look around.");
  }
};

const request = (query, signal) => {
  const parameters = filled();
  parameters.set("k", wanted);
  if (similarTo || asked) {
    parameters.delete("negative");
    parameters.delete("in");
    parameters.delete("literal");
    parameters.delete("min_confidence");
  }
  if (asked) {
    return fetch(`/api/search/image?${parameters}`, { method: "POST", body: asked.file, signal });
  }
  if (similarTo) return fetch(`/api/similar/${encodeURIComponent(similarTo)}?${parameters}`, { signal });
  parameters.set("q", query);
  return fetch(`/api/search?${parameters}`, { signal });
};

const search = async ({ isNew = true } = {}) => {
  const query = compose.query();
  showFilterCount();
  running?.abort();
  if (isNew) remember();
  showLook(query);
  const isBrowsing = !query && !similarTo && !asked && !linked;
  welcome.hidden = !isBrowsing;
  if (isNew) selection.clear();
  if (isBrowsing) {
    browse.showNamed("");
    selection.showFavourites();
    show([]);
    say("");
    more.hidden = true;
    document.title = "eaglenet";
    await browse.load(folder);
    return;
  }
  document.title = `${heading.textContent} \u00b7 eaglenet`;
  const mine = new AbortController();
  running = mine;
  // Names are not filtered, so that they would contradict filters.
  const isPlain = !similarTo && !asked && !linked && !compose.isComposed() && ![...filled()].length;
  browse.showNamed(isPlain ? query : "", mine.signal);
  say("Searching\u2026");
  results.setAttribute("aria-busy", "true");
  results.classList.add("busy");
  results.hidden = false;
  if (!hits.length) results.replaceChildren(...waiting(8));
  try {
    if (linked) {
      show(await address.linkedMoments(linked, mine.signal));
      say(hits.length ? "" : "None of these moments is indexed here any more.", !hits.length);
      more.hidden = true;
      return;
    }
    const answer = await request(query, mine.signal);
    if (answer.status === 401) {
      location.reload(); // The login page stands at the same address.
      return;
    }
    if (!answer.ok) throw new Error(await problem(answer));
    const body = await answer.json();
    show(body.hits);
    const count = `${body.hits.length} ${body.hits.length === 1 ? "moment" : "moments"}`;
    const what = similarTo ? "similar to this one" : `in ${Math.round(body.milliseconds)} ms`;
    const missing = body.missing?.length ? `; without ${body.missing.join(", ")}, which cannot be reached` : "";
    const isDoubtful = body.hits.every((hit) => isMeasured(hit) && hit.confidence < NOTHING);
    const doubt = isDoubtful ? "; nothing here is likely to show that" : "";
    const copies = new Set(body.hits.flatMap((hit) => hit.copies)).size;
    const note = (copies ? `; near copies not shown: ${copies}` : "") + (body.note ? `; ${body.note}` : "");
    say((body.hits.length ? `${count} ${what}${doubt}${note}` : nothing(body.note)) + missing, false, body.notice, body.language_hint);
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

const nothing = (note) => {
  if (note) return `No moment fits: ${note}`;
  return [...filled().keys()].length
    ? "No moment fits. Try fewer filters."
    : "No moment fits. Is anything indexed?";
};

const findSimilar = (hit) => {
  forget();
  similarTo = hit.clip_id;
  compose.restore("");
  wanted = PAGE;
  search();
  scrollTo({ top: 0 });
};

const findPicture = (file) => {
  forget();
  asked = { file, source: URL.createObjectURL(file) };
  compose.restore("");
  wanted = PAGE;
  search();
};

const offer = (tag) => {
  const choice = form.elements.tag;
  if ([...choice.options].some((option) => option.value === tag)) return;
  const option = element("option", "", tag);
  option.value = tag;
  choice.append(option);
};

const restore = async () => {
  const parameters = address.read();
  if (parameters.get("tag")) offer(parameters.get("tag"));
  for (const input of form.elements) {
    if (!input.name || !parameters.has(input.name)) continue;
    if (input.type === "checkbox") input.checked = parameters.getAll(input.name).includes(input.value);
    else input.value = parameters.get(input.name);
  }
  if (parameters.has("q")) compose.restore(parameters.get("q"));
  forget();
  similarTo = parameters.get("similar");
  linked = parameters.get("moments") ?? "";
  folder = parameters.get("folder") ?? "";
  wanted = PAGE;
  filters.open = filters.open || [...filled().keys()].length > 0;
  // The link is read before the search begins: opening and leaving the player change it.
  const moment = address.linked();
  await search({ isNew: false });
  const watched = await moment.catch(() => null);
  if (!watched) return;
  const known = hits.find((hit) => hit.clip_id === watched.clip_id);
  player.open(known ?? watched, hits, watched.moment.start);
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
  const typing = event.target.matches("input:not([type=checkbox], [type=range]), select, textarea");
  if (event.key === "?" && !typing && !document.querySelector("#help[open]")) {
    event.preventDefault();
    help.show();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
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
  forget();
  wanted = PAGE;
  search();
});
filters.addEventListener("change", () => {
  linked = ""; // Filters belong to a search.
  wanted = PAGE;
  search();
});
document.querySelector("#clear").addEventListener("click", () => {
  const query = compose.query();
  form.reset();
  compose.restore(query);
  search();
});
document.querySelector("#take-literally").addEventListener("click", () => {
  form.elements.literal.checked = true;
  field.focus();
  search();
});
more.addEventListener("click", async () => {
  const place = hits.length;
  wanted = Math.min(MOST, wanted * 2);
  await search({ isNew: false });
  focusCard(place);
});
addEventListener("popstate", () => {
  form.reset();
  compose.restore("");
  restore();
});

compose.setUp();
help.setUp();
selection.setUp((hit, all) => player.open(hit, all));
player.setUp(findSimilar, (hit) => focusCard(hits.indexOf(hit)));
picture.setUp(findPicture, () => say(picture.REFUSED, true));
browse.setUp((file, all) => player.open(file, all), (target) => {
  folder = target;
  search();
});

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
      `${number.format(info.clips)} clips` +
      (info.keyframe_clips ? ` (${number.format(info.keyframe_clips)} from keyframes so far)` : "") +
      ` \u00b7 ${number.format(info.files)} files \u00b7 ` +
      `${duration(info.hours)} \u00b7 ` +
      (info.transcript_lines ? `${number.format(info.transcript_lines)} transcript lines \u00b7 ` : "") + info.model;
    document.querySelector("#parts").hidden = !info.transcript_lines;
    document.querySelector("#sureness").hidden = !info.confidence_measured;
    info.tags.forEach(offer);
    form.elements.tag.closest("label").hidden = !info.tags.length;
    picture.allow(info.uploads);
  } catch {
    say("The service cannot be reached. Is it still running?", true);
  }
};

// What was typed before this script came is kept.
setUp();
restore();
