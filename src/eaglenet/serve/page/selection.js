// Selected moments, which can be exported, and favourites, which are stored in this browser.

import { asHit, copy, linkToAll, MAX_LINKED } from "./address.js";
import { clock, element, isImage, span, thumbnailImage, visible } from "./view.js";

const STORAGE_KEY = "eaglenet-favourites";
const MAX_FAVOURITES = 500;
const MAX_EXPORTED = 200;
const bar = document.querySelector("#selection");
const count = document.querySelector("#selected-count");
const favourites = document.querySelector("#favourites");

let selected = new Map();
let open = () => {};

const keyOf = (hit) => `${hit.clip_id}@${hit.moment.start.toFixed(2)}`;

const show = (message = "") => {
  bar.hidden = !selected.size && !message;
  count.textContent = message || `${selected.size} selected`;
};

// Checkbox of a card; the card itself opens the player.
export const checkbox = (hit) => {
  const label = element("label", "tick");
  const box = element("input");
  box.type = "checkbox";
  box.checked = selected.has(keyOf(hit));
  box.setAttribute("aria-label", isImage(hit) ? `Select ${visible(hit.name)}` : `Select ${visible(hit.name)}, ${span(hit.moment)}`);
  box.addEventListener("change", () => {
    if (box.checked) selected.set(keyOf(hit), hit);
    else selected.delete(keyOf(hit));
    show();
  });
  label.append(box);
  return label;
};

export const clear = () => {
  selected = new Map();
  for (const box of document.querySelectorAll(".tick input")) box.checked = false;
  show();
};

// Not the search box, which Esc empties.
const title = () => document.querySelector("#heading").textContent.trim().slice(0, 200) || "moments";

const saveList = async () => {
  const format = document.querySelector("#save-format").value;
  const moments = [...selected.values()].map((hit) => ({
    clip_id: hit.clip_id, start: hit.moment.start, end: hit.moment.end,
    score: hit.score ?? 0, confidence: hit.confidence ?? null,
  }));
  if (moments.length > MAX_EXPORTED) {
    show(`At most ${MAX_EXPORTED} moments can be saved at once.`);
    return;
  }
  const answer = await fetch("/api/export", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ moments, format, title: title() }),
  }).catch(() => null);
  if (!answer?.ok) {
    const problem = await answer?.json().catch(() => null);
    show(`Not saved: ${problem?.error?.message ?? "the service does not answer"}`);
    return;
  }
  const link = element("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `moments.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  show();
};

const copyList = async () => {
  const lines = [...selected.values()].map((hit) => `${hit.path}\t${span(hit.moment)}`);
  show(await copy(lines.join("\n"))
    ? `${lines.length} copied`
    : "The browser does not allow copying here; save the list instead.");
};

// Share the link on a phone; copy it elsewhere.
const share = async () => {
  const hits = [...selected.values()];
  const link = linkToAll(hits);
  const limit = hits.length > MAX_LINKED ? ` to the first ${MAX_LINKED}` : "";
  if (matchMedia("(pointer: coarse)").matches && navigator.share) {
    await navigator.share({ title: "Moments", url: link }).catch(() => {});
    return;
  }
  if (await copy(link)) {
    show(`Link${limit} copied`);
    return;
  }
  const field = element("input");
  field.readOnly = true;
  field.value = link;
  field.setAttribute("aria-label", "Link to the selected moments");
  count.replaceChildren(field);
  field.select();
};

const selectAll = () => {
  for (const box of document.querySelectorAll("#results .tick input:not(:checked)")) box.click();
};

const readFavourites = () => {
  try {
    const hits = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "[]");
    return Array.isArray(hits) ? hits.filter((each) => typeof each?.clip_id === "string" && each.moment) : [];
  } catch {
    return [];
  }
};

const writeFavourites = (hits) => {
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify(hits.slice(0, MAX_FAVOURITES)));
    return true;
  } catch {
    return false;
  }
};

const addFavourites = () => {
  const hits = readFavourites();
  const keys = new Set(hits.map(keyOf));
  const newHits = [...selected.values()].filter((hit) => !keys.has(keyOf(hit)));
  const isSaved = writeFavourites([...newHits, ...hits]);
  clear();
  show(isSaved ? `${newHits.length} added to favourites` : "This browser does not allow this page to store favourites.");
  showFavourites();
};

const favouriteTile = (hit, all) => {
  const item = element("li");
  const button = element("button", "tile");
  button.type = "button";
  button.title = visible(hit.path);
  const frame = element("span", "frame");
  frame.append(thumbnailImage(hit.thumbnail, frame), element("span", "span", clock(hit.moment.start)));
  const text = element("span", "text");
  text.append(element("span", "name", visible(hit.name)));
  button.append(frame, text);
  button.addEventListener("click", () => open(hit, all));
  const remove = element("button", "round drop", "\u00d7");
  remove.type = "button";
  remove.setAttribute("aria-label", `Remove ${visible(hit.name)} from favourites`);
  remove.addEventListener("click", () => {
    writeFavourites(readFavourites().filter((each) => keyOf(each) !== keyOf(hit)));
    showFavourites();
  });
  item.append(button, remove);
  return item;
};

export const showFavourites = () => {
  const all = readFavourites().map((hit) => asHit(hit, hit.moment));
  favourites.querySelector("ul").replaceChildren(...all.map((hit) => favouriteTile(hit, all)));
  favourites.hidden = !all.length;
};

export const setUp = (onOpen) => {
  open = onOpen;
  document.querySelector("#save-list").addEventListener("click", saveList);
  document.querySelector("#select-all").addEventListener("click", selectAll);
  document.querySelector("#share-selected").addEventListener("click", share);
  document.querySelector("#copy-list").addEventListener("click", copyList);
  document.querySelector("#favour").addEventListener("click", addFavourites);
  document.querySelector("#unselect").addEventListener("click", clear);
};
