// The dialog that plays a hit from its moment on.

import { clock, element, span } from "./view.js";

const dialog = document.querySelector("#player");
const video = document.querySelector("#video");
const cannot = document.querySelector("#cannot-play");
const title = document.querySelector("#player-title");
const detail = document.querySelector("#player-detail");
const previous = document.querySelector("#previous");
const next = document.querySelector("#next");

let shown = null;
let hits = [];

const seek = () => {
  video.currentTime = shown.moment.start;
  video.play().catch(() => {}); // Where playing must be asked for, the controls are there.
};

export const open = (hit, all) => {
  shown = hit;
  hits = all;
  cannot.hidden = true;
  title.textContent = hit.name;
  detail.textContent = `${span(hit.moment)} of ${clock(hit.duration)} \u00b7 best at ` +
    `${clock(hit.moment.best)} \u00b7 score ${hit.score.toFixed(3)} \u00b7 ${hit.path}`;
  const place = hits.indexOf(hit);
  previous.disabled = place <= 0;
  next.disabled = place < 0 || place >= hits.length - 1;
  video.poster = hit.thumbnail;
  video.src = `${hit.video}#t=${hit.moment.start.toFixed(2)}`;
  if (!dialog.open) dialog.showModal();
  video.focus();
};

const say = (message) => {
  cannot.replaceChildren(element("strong", "", message));
  const link = element("a", "", "Download the file to play it elsewhere");
  link.href = shown.video;
  link.download = shown.name;
  cannot.append(link);
  cannot.hidden = false;
};

video.addEventListener("loadedmetadata", () => {
  if (!video.videoWidth) say("This browser cannot play this file's codec.");
  seek();
});

video.addEventListener("error", async () => {
  if (!shown || !dialog.open || !video.getAttribute("src")) return;
  const hit = shown;
  let message = "This browser cannot play this file's codec.";
  try {
    const answer = await fetch(hit.video, { headers: { Range: "bytes=0-0" } });
    if (!answer.ok) message = (await answer.json()).error.message;
  } catch {
    message = "The service cannot be reached.";
  }
  if (hit === shown) say(message);
});

const step = (by) => {
  const target = hits[hits.indexOf(shown) + by];
  if (target) open(target, hits);
};

export const setUp = (onSimilar, onClose) => {
  previous.addEventListener("click", () => step(-1));
  next.addEventListener("click", () => step(1));
  document.querySelector("#again").addEventListener("click", seek);
  document.querySelector("#close").addEventListener("click", () => dialog.close());
  document.querySelector("#similar").addEventListener("click", () => {
    const hit = shown;
    dialog.close();
    onSimilar(hit);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // The backdrop.
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "n") step(1);
    if (event.key === "p") step(-1);
  });
  dialog.addEventListener("close", () => {
    const hit = shown;
    shown = null;
    video.removeAttribute("src");
    video.removeAttribute("poster");
    video.load();
    onClose(hit);
  });
};
