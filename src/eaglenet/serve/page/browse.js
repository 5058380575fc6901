// Browsing: folders and files of the store, shown while there is no query.

import { clock, damageLabel, day, element, isImage, thumbnailImage, visible } from "./view.js";
import { asHit } from "./address.js";

const PAGE = 24;

const trail = document.querySelector("#trail");
const folders = document.querySelector("#folders");
const files = document.querySelector("#files");
const more = document.querySelector("#more-files");
const order = document.querySelector("#order");
const title = document.querySelector("#browse-title");

let folder = "";
let currentFiles = [];
let controller = null;
let open = () => {};
let enter = () => {};

const fileCard = (file, all = null) => {
  const item = element("li");
  const button = element("button", "tile");
  button.type = "button";
  button.title = visible(file.path);
  const frame = element("span", "frame");
  frame.append(thumbnailImage(file.thumbnail, frame), element("span", "span", isImage(file) ? "image" : clock(file.duration)));
  const text = element("span", "text");
  const facts = element("span", "facts");
  const when = day(file) || `modified ${day({ recorded: file.modified })}`;
  facts.append(element("span", "folder", visible(file.folder.split("/").pop()) || "-"), element("span", "", when));
  if (file.damage) facts.firstChild.after(damageLabel(file));
  text.append(element("span", "name", visible(file.name)), facts);
  button.append(frame, text);
  button.addEventListener("click", () => open(file, all ?? currentFiles));
  item.append(button);
  return item;
};

const step = (name, target, isHere) => {
  const button = element("button", "quiet", visible(name));
  button.type = "button";
  if (isHere) button.setAttribute("aria-current", "page");
  button.addEventListener("click", () => enter(target));
  return button;
};

const showTrail = () => {
  const parts = folder ? folder.split("/") : [];
  const steps = parts.map((name, number) => step(name, parts.slice(0, number + 1).join("/"), number === parts.length - 1));
  trail.replaceChildren(step("All files", "", !parts.length), ...steps);
  trail.hidden = !parts.length;
};

const showFolders = (subfolders) => {
  folders.replaceChildren(...subfolders.map((each) => {
    const item = element("li");
    const button = step(each.name, each.folder, false);
    button.classList.add("folder-button");
    button.append(element("span", "count", each.files));
    item.append(button);
    return item;
  }));
  folders.hidden = !subfolders.length;
};

export const load = async (target = folder, isMore = false) => {
  folder = target;
  controller?.abort();
  const ownController = new AbortController();
  controller = ownController;
  const first = isMore ? currentFiles.length : 0;
  const parameters = new URLSearchParams({ folder, order: order.value, first, k: PAGE });
  let body;
  try {
    const answer = await fetch(`/api/files?${parameters}`, { signal: ownController.signal });
    if (answer.status === 404 && folder) return void await load(""); // Its files were removed.
    if (!answer.ok) return;
    body = await answer.json();
  } catch {
    return; // Another request replaced it, or the service is down, which a search reports.
  }
  if (!folder && body.folders.length === 1 && body.folders[0].files === body.total) {
    await load(body.folders[0].folder); // Skip a single folder that contains everything.
    return;
  }
  title.textContent = folder ? `Files in ${visible(folder)}` : "Files";
  showTrail();
  showFolders(body.folders);
  const newFiles = body.files.map((file) => asHit(file, { start: 0, end: file.duration, best: 0 }));
  currentFiles = isMore ? [...currentFiles, ...newFiles] : newFiles;
  const cards = newFiles.map((file) => fileCard(file));
  if (isMore) files.append(...cards);
  else files.replaceChildren(...cards);
  more.hidden = currentFiles.length >= body.total;
};

// Files whose name or folder contains the words of the query, above the moments.
const named = document.querySelector("#named");
const MAX_NAMED = 6;

export const showNamed = async (query, signal) => {
  named.hidden = true;
  if (!query) return;
  const parameters = new URLSearchParams({ name: query.slice(0, 300), k: MAX_NAMED });
  const answer = await fetch(`/api/files?${parameters}`, { signal }).catch(() => null);
  if (!answer?.ok) return;
  const body = await answer.json();
  if (signal.aborted || !body.files.length) return;
  const newFiles = body.files.map((file) => asHit(file, { start: 0, end: file.duration, best: 0 }));
  const count = `${body.total} ${body.total === 1 ? "file has" : "files have"} these words in the name or folder`;
  named.querySelector("h2").textContent = body.total > newFiles.length ? `${count}; the newest:` : count;
  named.querySelector("ul").replaceChildren(...newFiles.map((file) => fileCard(file, newFiles)));
  named.hidden = false;
};

export const setUp = (onOpen, onEnter) => {
  open = onOpen;
  enter = onEnter;
  order.addEventListener("change", () => load());
  more.addEventListener("click", async () => {
    const first = files.children.length;
    await load(folder, true);
    files.children[first]?.querySelector("button").focus();
  });
};
