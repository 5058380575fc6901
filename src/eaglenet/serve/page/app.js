// The page: search field, filters, grid of moments, keyboard shortcuts.

import * as address from "./address.js";
import * as browse from "./browse.js";
import * as compose from "./compose.js";
import * as help from "./help.js";
import * as image from "./image.js";
import { lineOf } from "./lines.js";
import * as player from "./player.js";
import * as selection from "./selection.js";
import { card, element, isMeasured, placeholders, span, visible } from "./view.js";

const PAGE = 24;
const MAX_RESULTS = 200;
const MIN_LIKELY = 0.1; // If no hit has this confidence, none is likely to be right; as on the command line.

const form = document.querySelector("#search");
const field = document.querySelector("#query");
const heading = document.querySelector("#heading");
const lead = document.querySelector("#lead");
const example = document.querySelector("#chosen");
const results = document.querySelector("#results");
const status = document.querySelector("#status");
const more = document.querySelector("#more");
const welcome = document.querySelector("#welcome");
const filters = document.querySelector("#filters");
const filterCount = document.querySelector("#filter-count");
const notice = document.querySelector("#notice");
const language = document.querySelector("#language");
const negation = document.querySelector("#negation");
const exclude = document.querySelector("#exclude");

let hits = [];
let controller = null;
let similarTo = null;
let queryImage = null; // Image to search with: its file and its address.
let origin = ""; // Query to go back to from moments like a clip or an image.
let linkedMoments = ""; // Moments of a link, shown instead of a search.
let folder = "";
let excludingQuery = ""; // What a text like "a street without cars" means, as a query of parts.
let limit = PAGE;

const filterValues = () => {
  const parameters = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    if (name !== "q" && typeof value === "string" && value.trim()) parameters.append(name, value.trim());
  }
  return parameters;
};

const showNegation = (advice) => {
  negation.hidden = !advice;
  excludingQuery = advice?.query ?? "";
  if (!advice) return;
  const avoided = advice.negatives.map((text) => `"${text}"`).join(" and ");
  negation.firstElementChild.textContent = `${advice.reason}.`;
  exclude.hidden = !advice.query;
  exclude.textContent = `Search for "${advice.text}" without ${avoided}`;
};

const say = (message, isBad = false, interpretation = "", hint = "", advice = null) => {
  showNegation(advice);
  language.hidden = !hint;
  language.textContent = hint && `${hint[0].toUpperCase()}${hint.slice(1)}.`;
  notice.hidden = !interpretation;
  notice.firstElementChild.textContent = interpretation;
  status.textContent = message;
  status.classList.toggle("bad", isBad);
};

const errorText = async (answer) => {
  try {
    const { error } = await answer.json();
    // For these, the hint is for programs.
    return error.code === "bad_request" || error.code === "invalid" ? error.message : `${error.message} \u2014 ${error.hint}`;
  } catch {
    return `The service answered ${answer.status}.`;
  }
};

const showFilterCount = () => {
  const count = [...filterValues().keys()].length;
  filterCount.textContent = count;
  filterCount.hidden = !count;
};

const play = (hit) => player.open(hit, hits);

const show = (newHits) => {
  hits = newHits;
  results.replaceChildren(...hits.map((hit) => {
    const line = hit.transcript?.length ? lineOf(hit.transcript[0]) : null;
    const item = card(hit, play, line);
    item.append(selection.checkbox(hit));
    return item;
  }));
  const numLikely = hits.findLastIndex((hit) => !isMeasured(hit) || hit.match !== "unlikely") + 1;
  if (numLikely && numLikely < hits.length) results.children[numLikely].before(element("li", "less", "Less likely"));
  results.hidden = !hits.length;
  [...results.querySelectorAll(".card")].forEach((button, index) => {
    button.tabIndex = index ? -1 : 0; // One stop for Tab; arrows move inside the grid.
  });
};

const updateAddress = () => {
  const parameters = filterValues();
  if (linkedMoments) parameters.set("moments", linkedMoments);
  else if (similarTo) parameters.set("similar", similarTo);
  else if (compose.query() && !queryImage) parameters.set("q", compose.query());
  else if (folder) parameters.set("folder", folder);
  address.go(parameters, { origin });
};

const headline = (text, below = "") => {
  heading.textContent = text;
  lead.textContent = below;
  lead.hidden = !below;
};

// Show the clip or image that the results are similar to, with a button to leave it.
const showExample = (source, name, detail) => {
  const frame = element("img");
  frame.alt = "";
  frame.src = source;
  const text = element("div");
  text.append(element("strong", "", name), element("span", "", detail));
  const leave = element("button", "quiet", origin ? "Back to the search" : "Back to all files");
  leave.type = "button";
  leave.title = origin;
  leave.addEventListener("click", () => {
    compose.restore(origin);
    resetQuery();
    limit = PAGE;
    search();
  });
  example.replaceChildren(frame, text, leave);
  example.hidden = false;
};

const resetQuery = () => {
  origin = "";
  similarTo = null;
  linkedMoments = "";
  if (queryImage) URL.revokeObjectURL(queryImage.source);
  queryImage = null;
};

const showHeading = async (query) => {
  example.hidden = true;
  if (similarTo) {
    headline("Similar moments");
    const id = similarTo;
    const answer = await fetch(`/api/clips/${encodeURIComponent(id)}`).catch(() => null);
    if (answer?.ok && similarTo === id) {
      const clip = await answer.json();
      showExample(clip.thumbnail, visible(clip.name), span(clip));
    }
  } else if (queryImage) {
    headline("Moments like an image");
    showExample(queryImage.source, visible(queryImage.file.name) || "Pasted image", `${Math.ceil(queryImage.file.size / 1024)} KB`);
  } else if (linkedMoments) {
    headline("Shared moments");
  } else if (query) {
    headline(query.replace(/ within (\d+)s$/, (all, seconds) => (seconds % 60 ? all : ` within ${seconds / 60} min`)));
  } else {
    headline("Find the moment", "Describe what you want to see, in plain words, or browse the files.");
  }
};

const request = (query, signal) => {
  const parameters = filterValues();
  parameters.set("k", limit);
  if (similarTo || queryImage) {
    parameters.delete("negative");
    parameters.delete("in");
    parameters.delete("literal");
    parameters.delete("min_confidence");
  }
  if (queryImage) {
    return fetch(`/api/search/image?${parameters}`, { method: "POST", body: queryImage.file, signal });
  }
  if (similarTo) return fetch(`/api/similar/${encodeURIComponent(similarTo)}?${parameters}`, { signal });
  parameters.set("q", query);
  return fetch(`/api/search?${parameters}`, { signal });
};

// Results of the last search stay, dimmed, so that a quick one does not flicker; after this time
// they would be taken for those of the new heading.
const MAX_STALE_MILLISECONDS = 300;

const search = async ({ isNew = true, isMore = false } = {}) => {
  const query = compose.query();
  showFilterCount();
  controller?.abort();
  if (isNew) updateAddress();
  showHeading(query);
  const isBrowsing = !query && !similarTo && !queryImage && !linkedMoments;
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
  const ownController = new AbortController();
  controller = ownController;
  // Only without filters, which do not apply to names.
  const isPlain = !similarTo && !queryImage && !linkedMoments && !compose.isComposed() && ![...filterValues()].length;
  browse.showNamed(isPlain ? query : "", ownController.signal);
  say("Searching\u2026");
  results.setAttribute("aria-busy", "true");
  results.classList.add("busy");
  results.hidden = false;
  const showPlaceholders = () => {
    if (controller !== ownController) return;
    results.replaceChildren(...placeholders(8));
    more.hidden = true;
  };
  const staleTimer = hits.length && !isMore ? setTimeout(showPlaceholders, MAX_STALE_MILLISECONDS) : 0;
  if (!hits.length) showPlaceholders();
  try {
    if (linkedMoments) {
      show(await address.linkedMoments(linkedMoments, ownController.signal));
      const numGone = address.numLinked(linkedMoments) - hits.length;
      const gone = `${numGone} of these moments ${numGone === 1 ? "is" : "are"} no longer indexed here.`;
      say(!hits.length ? "None of these moments is indexed here any more." : numGone ? gone : "", !hits.length);
      more.hidden = true;
      return;
    }
    const answer = await request(query, ownController.signal);
    if (answer.status === 401) {
      location.reload(); // The login page has the same address.
      return;
    }
    if (!answer.ok) {
      const name = queryImage?.file.name || "image";
      throw new Error((await errorText(answer)).replace(/^upload(?=: )/, () => name));
    }
    const body = await answer.json();
    show(body.hits);
    const count = `${body.hits.length} ${body.hits.length === 1 ? "moment" : "moments"}`;
    const what = similarTo ? "similar to this one" : `in ${Math.round(body.milliseconds)} ms`;
    const missing = body.missing?.length ? `; without ${body.missing.join(", ")}, which cannot be reached` : "";
    const isDoubtful = body.hits.every((hit) => isMeasured(hit) && hit.confidence < MIN_LIKELY);
    const doubt = isDoubtful ? "; no moment is likely to show this" : "";
    const copies = new Set(body.hits.flatMap((hit) => hit.copies)).size;
    const isApproximate = body.hits.some((hit) => hit.from_keyframes);
    const progress = isApproximate ? "; some are approximate until indexing is complete" : "";
    const note = progress + (copies ? `; near copies not shown: ${copies}` : "") + (body.note ? `; ${body.note}` : "");
    say((body.hits.length ? `${count} ${what}${doubt}${note}` : emptyMessage(body.note)) + missing, false, body.notice, body.language_hint, body.negation);
    more.hidden = body.hits.length < limit || limit >= MAX_RESULTS;
  } catch (error) {
    if (error.name === "AbortError") return;
    show([]);
    more.hidden = true;
    say(error instanceof TypeError ? "The service cannot be reached. Is it still running?" : error.message, true);
  } finally {
    clearTimeout(staleTimer);
    if (controller === ownController) {
      results.classList.remove("busy");
      results.removeAttribute("aria-busy");
    }
  }
};

const emptyMessage = (note) => {
  if (note) return `No moment matches: ${note}`;
  return [...filterValues().keys()].length
    ? "No moment matches. Try fewer filters."
    : "No moment matches. Is anything indexed?";
};

const leaveSearch = () => {
  const query = compose.query() || origin;
  resetQuery();
  origin = query;
  compose.restore("");
};

const findSimilar = (hit) => {
  leaveSearch();
  similarTo = hit.clip_id;
  limit = PAGE;
  search();
  scrollTo({ top: 0 });
};

const findByImage = (file) => {
  leaveSearch();
  queryImage = { file, source: URL.createObjectURL(file) };
  limit = PAGE;
  search();
  scrollTo({ top: 0 });
};

const addTag = (tag) => {
  const choice = form.elements.tag;
  if ([...choice.options].some((option) => option.value === tag)) return;
  const option = element("option", "", tag);
  option.value = tag;
  choice.append(option);
};

const restore = async () => {
  const parameters = address.read();
  if (parameters.get("tag")) addTag(parameters.get("tag"));
  for (const input of form.elements) {
    if (!input.name || !parameters.has(input.name)) continue;
    if (input.type === "checkbox") input.checked = parameters.getAll(input.name).includes(input.value);
    else input.value = parameters.get(input.name);
  }
  if (parameters.has("q")) compose.restore(parameters.get("q"));
  resetQuery();
  origin = history.state?.origin ?? "";
  similarTo = parameters.get("similar");
  linkedMoments = parameters.get("moments") ?? "";
  folder = parameters.get("folder") ?? "";
  limit = PAGE;
  filters.open = filters.open || [...filterValues().keys()].length > 0;
  // Read the link before the search, because opening and closing the player change it.
  const moment = address.linkedMoment();
  await search({ isNew: false });
  const linkedHit = await moment.catch(() => null);
  if (!linkedHit) {
    if (parameters.has("clip")) {
      address.leave();
      const gone = "The moment of this link is no longer indexed here.";
      status.textContent = [gone, status.textContent].filter(Boolean).join(" ");
    }
    return;
  }
  const hit = hits.find((each) => each.clip_id === linkedHit.clip_id);
  player.open(hit ?? linkedHit, hits, linkedHit.moment.start);
};

const focusCard = (index) => {
  const cards = [...results.querySelectorAll("button.card")];
  if (!cards[index]) return false;
  cards.forEach((button) => { button.tabIndex = -1; });
  cards[index].tabIndex = 0;
  cards[index].focus();
  cards[index].scrollIntoView({ block: "nearest" });
  return true;
};

const columns = () => getComputedStyle(results).gridTemplateColumns.split(" ").length;

const moveInGrid = (event) => {
  const cards = [...results.querySelectorAll("button.card")];
  const index = cards.indexOf(document.activeElement);
  if (index < 0) return;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() };
  if (event.key in steps) {
    event.preventDefault();
    const target = index + steps[event.key];
    if (target < 0) field.focus();
    else focusCard(Math.min(target, cards.length - 1));
  } else if (event.key === "Home" || event.key === "End") {
    event.preventDefault();
    focusCard(event.key === "Home" ? 0 : cards.length - 1);
  } else if (event.key === "s") {
    findSimilar(hits[index]);
  } else if (event.key === "Escape") {
    field.focus();
    field.select();
  }
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const isTyping = event.target.matches("input:not([type=checkbox], [type=range]), select, textarea");
  if (event.key === "?" && !isTyping && !document.querySelector("#help[open]")) {
    event.preventDefault();
    help.show();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    field.focus();
    field.select();
  } else if (event.target === field && event.key === "ArrowDown") {
    if (focusCard(0)) event.preventDefault();
  } else if (!isTyping) {
    moveInGrid(event);
  }
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  resetQuery();
  limit = PAGE;
  search();
});
filters.addEventListener("change", () => {
  linkedMoments = ""; // Filters belong to a search.
  limit = PAGE;
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
exclude.addEventListener("click", () => {
  compose.restore(excludingQuery);
  field.focus();
  limit = PAGE;
  search();
});
more.addEventListener("click", async () => {
  const index = hits.length;
  limit = Math.min(MAX_RESULTS, limit * 2);
  await search({ isNew: false, isMore: true });
  focusCard(index);
});
addEventListener("popstate", () => {
  player.close(); // Its moment belongs to the results of another search.
  form.reset();
  compose.restore("");
  restore();
});

compose.setUp();
help.setUp();
selection.setUp((hit, all) => player.open(hit, all));
player.setUp(findSimilar, (hit) => focusCard(hits.indexOf(hit)));
image.setUp(findByImage, (message) => say(message, true));
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
      (info.keyframe_clips ? ` (${number.format(info.keyframe_clips)} approximate so far)` : "") +
      ` \u00b7 ${number.format(info.files)} files \u00b7 ` +
      `${duration(info.hours)} \u00b7 ` +
      (info.transcript_lines ? `${number.format(info.transcript_lines)} transcript ${info.transcript_lines === 1 ? "line" : "lines"} \u00b7 ` : "") + info.model;
    document.querySelector("#parts").hidden = !info.transcript_lines;
    document.querySelector("#sureness").hidden = !info.confidence_measured;
    info.tags.forEach(addTag);
    form.elements.tag.closest("label").hidden = !info.tags.length;
    image.setAllowed(info.uploads);
  } catch {
    say("The service cannot be reached. Is it still running?", true);
  }
};

// Text typed before this script was loaded stays.
setUp();
restore();
