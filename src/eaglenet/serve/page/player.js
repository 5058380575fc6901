// The dialog that plays a hit from its moment on; what the browser cannot play comes converted.
// A photograph is shown in the place of the video.

import * as address from "./address.js";
import * as timeline from "./timeline.js";
import { clock, element, isPicture, span, streamOf } from "./view.js";
import * as words from "./words.js";

const dialog = document.querySelector("#player");
const video = document.querySelector("#video");
const still = document.querySelector("#still");
const again = document.querySelector("#again");
const track = document.querySelector(".timeline");
const cannot = document.querySelector("#cannot-play");
const title = document.querySelector("#player-title");
const detail = document.querySelector("#player-detail");
const lines = document.querySelector("#player-words");
const previous = document.querySelector("#previous");
const next = document.querySelector("#next");
const download = document.querySelector("#download");
const shared = document.querySelector("#shared");

let shown = null;
let hits = [];
let wanted = 0; // Second of the file to play from.
let begin = null; // Second of the file at which a converted stream begins; null: the file itself.

const now = () => (begin ?? 0) + video.currentTime;

const start = () => video.play().catch(() => {}); // Where playing must be asked for, controls are there.

const isLoaded = (seconds) => {
  for (let part = 0; part < video.buffered.length; part += 1) {
    if (video.buffered.start(part) <= seconds && seconds <= video.buffered.end(part)) return true;
  }
  return false;
};

const playFrom = (seconds) => {
  wanted = seconds;
  cannot.hidden = true;
  if (begin !== null && !isLoaded(seconds - begin)) {
    convert();
    return;
  }
  video.currentTime = seconds - (begin ?? 0);
  start();
};

const describe = (hit) => {
  const score = hit.score === null ? [] : [`best at ${clock(hit.moment.best)}`, `score ${hit.score.toFixed(3)}`];
  if (isPicture(hit)) return ["picture", ...score.slice(1), hit.path].join(" \u00b7 ");
  const where = hit.score === null ? clock(hit.duration) : `${span(hit.moment)} of ${clock(hit.duration)}`;
  return [where, ...score, hit.path].join(" \u00b7 ");
};

export const open = (hit, all, seconds = hit.moment.start) => {
  shown = hit;
  hits = all;
  wanted = seconds;
  begin = null;
  cannot.hidden = true;
  shared.textContent = "";
  title.textContent = hit.name;
  detail.textContent = describe(hit);
  lines.replaceChildren(...words.list(hit.transcript ?? [], playFrom));
  lines.hidden = !lines.children.length;
  const place = hits.indexOf(hit);
  previous.disabled = place <= 0;
  next.disabled = place < 0 || place >= hits.length - 1;
  download.href = hit.video;
  download.download = hit.name;
  for (const part of [video, track, again]) part.hidden = isPicture(hit);
  still.hidden = !isPicture(hit);
  if (isPicture(hit)) showStill(hit);
  else {
    video.poster = hit.thumbnail;
    video.src = `${hit.video}#t=${seconds.toFixed(2)}`;
  }
  if (!dialog.open) dialog.showModal();
  (isPicture(hit) ? still : video).focus();
  if (!isPicture(hit)) timeline.show(hit, hits, playFrom);
  address.watch(hit, seconds);
};

const showStill = (hit) => {
  letGo();
  still.alt = hit.name;
  still.src = hit.video;
};

const letGo = () => {
  video.removeAttribute("src");
  video.removeAttribute("poster");
  video.load();
};

const say = (message) => {
  cannot.replaceChildren(element("strong", "", message));
  const link = element("a", "", "Download the file to play it elsewhere");
  link.href = shown.video;
  link.download = shown.name;
  cannot.append(link);
  cannot.hidden = false;
};

// The stream begins at a keyframe before the moment, or at it: only the service knows.
const convert = async () => {
  const hit = shown;
  const source = `${streamOf(hit)}?start=${wanted.toFixed(2)}`;
  let message = "This browser cannot play this file's codec.";
  try {
    const answer = await fetch(source, { method: "HEAD" });
    if (answer.ok) {
      if (hit !== shown || !dialog.open) return;
      begin = Number(answer.headers.get("Eaglenet-Start"));
      video.src = source;
      return;
    }
    const problem = await fetch(source);
    if (!problem.ok) message = (await problem.json()).error.message;
  } catch {
    message = "The service cannot be reached.";
  }
  if (hit === shown) say(message);
};

video.addEventListener("loadedmetadata", () => {
  if (!shown) return;
  if (!video.videoWidth && begin === null) {
    convert();
    return;
  }
  video.currentTime = Math.max(0, wanted - (begin ?? 0));
  start();
});

// Browsers show no TIFF; its thumbnail is there. A file that is gone says so.
still.addEventListener("error", async () => {
  const hit = shown;
  if (!hit || !still.getAttribute("src")) return;
  const isThumbnail = still.getAttribute("src") === hit.thumbnail;
  let message = isThumbnail ? "There is no picture of this file." : "";
  try {
    const answer = await fetch(hit.video, { headers: { Range: "bytes=0-0" } });
    if (!answer.ok) message = (await answer.json()).error.message;
  } catch {
    message = "The service cannot be reached.";
  }
  if (hit !== shown) return;
  if (message) say(message);
  else still.src = hit.thumbnail;
});

video.addEventListener("timeupdate", () => shown && timeline.follow(now()));

video.addEventListener("error", async () => {
  if (!shown || !dialog.open || !video.getAttribute("src")) return;
  if (begin !== null) {
    say("This browser cannot play this file's codec.");
    return;
  }
  const hit = shown;
  // A file that is gone or has changed says so; one that is there is asked for in another form.
  try {
    const answer = await fetch(hit.video, { headers: { Range: "bytes=0-0" } });
    if (!answer.ok) {
      const { error } = await answer.json();
      if (hit === shown) say(error.message);
      return;
    }
  } catch {
    if (hit === shown) say("The service cannot be reached.");
    return;
  }
  if (hit === shown) convert();
});

const step = (by) => {
  const target = hits[hits.indexOf(shown) + by];
  if (target) open(target, hits);
};

const share = async () => {
  const link = address.linkTo(shown, now());
  try {
    await navigator.clipboard.writeText(link);
    shared.textContent = isPicture(shown) ? "Link copied." : `Link to ${clock(now())} copied.`;
  } catch {
    // Without a safe connection a page may not write there; the link can be taken by hand.
    const field = element("input");
    field.readOnly = true;
    field.value = link;
    field.setAttribute("aria-label", "Link to this moment");
    shared.replaceChildren(field);
    field.select();
  }
};

export const setUp = (onSimilar, onClose) => {
  const similar = () => {
    const hit = shown;
    dialog.close();
    onSimilar(hit);
  };
  const replay = () => isPicture(shown) || playFrom(shown.moment.start);
  previous.addEventListener("click", () => step(-1));
  next.addEventListener("click", () => step(1));
  again.addEventListener("click", replay);
  document.querySelector("#close").addEventListener("click", () => dialog.close());
  document.querySelector("#similar").addEventListener("click", similar);
  document.querySelector("#share").addEventListener("click", share);
  timeline.setUp(playFrom);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // The backdrop.
  });
  const keys = { n: () => step(1), p: () => step(-1), r: replay, s: similar, l: share };
  dialog.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=range])")) return;
    keys[event.key]?.();
  });
  dialog.addEventListener("close", () => {
    const hit = shown;
    shown = null;
    begin = null;
    letGo();
    still.removeAttribute("src");
    address.leave();
    onClose(hit);
  });
};
