// Dialog that plays a hit from its moment on, converted if the browser cannot play the file.
// Images are shown instead of the video.

import * as address from "./address.js";
import * as timeline from "./timeline.js";
import { clock, day, element, folderOf, frameOf, isImage, isMeasured, scoreOf, span, streamOf, visible } from "./view.js";
import { lineItems, stepItems } from "./lines.js";

const dialog = document.querySelector("#player");
const video = document.querySelector("#video");
const imageView = document.querySelector("#still");
const again = document.querySelector("#again");
const track = document.querySelector(".timeline");
const failure = document.querySelector("#cannot-play");
const title = document.querySelector("#player-title");
const detail = document.querySelector("#player-detail");
const lines = document.querySelector("#player-words");
const previous = document.querySelector("#previous");
const next = document.querySelector("#next");
const download = document.querySelector("#download");
const shareStatus = document.querySelector("#shared");
const path = document.querySelector("#player-path");
const toggle = document.querySelector("#toggle");
const sound = document.querySelector("#sound");
const fullscreen = document.querySelector("#fullscreen");

let current = null;
let hits = [];
let startTime = 0; // Second of the file to play from.
let streamStart = null; // Second of the file at which a converted stream starts; null: the file itself.
let isMoved = false; // True if the user chose another position than the start of the moment.

const now = () => (streamStart ?? 0) + video.currentTime;

const start = () => video.play().catch(() => {}); // The browser may require a click on Play.

const isLoaded = (seconds) => {
  for (let part = 0; part < video.buffered.length; part += 1) {
    if (video.buffered.start(part) <= seconds && seconds <= video.buffered.end(part)) return true;
  }
  return false;
};

const playFrom = (seconds) => {
  startTime = seconds;
  failure.hidden = true;
  if (streamStart !== null && !isLoaded(seconds - streamStart)) {
    convert();
    return;
  }
  video.currentTime = seconds - (streamStart ?? 0);
  start();
};

const matchText = (hit) => (isMeasured(hit)
  ? `${hit.match} (${Math.floor(100 * hit.confidence + 1e-6)}%)` : scoreOf(hit) && `score ${scoreOf(hit)}`);

const describe = (hit) => {
  const score = hit.score === null ? [] : [`best at ${clock(hit.moment.best)}`, matchText(hit)];
  const recording = [day(hit), hit.camera, hit.damage];
  if (isImage(hit)) return ["image", ...score.slice(1), ...recording].filter(Boolean).join(" \u00b7 ");
  const times = hit.score === null ? clock(hit.duration) : `${span(hit.moment)} of ${clock(hit.duration)}`;
  return [times, ...score, ...recording].filter(Boolean).join(" \u00b7 ");
};

// Show the folder; the whole path unfolds.
const showPath = (hit) => {
  path.open = false;
  path.querySelector("summary").textContent = visible(folderOf(hit)) || "Path";
  path.querySelector("code").textContent = visible(hit.path);
};

// A path that is copied opens the file, whatever is shown for it.
path.addEventListener("copy", (event) => {
  if (getSelection().toString().trim() !== visible(current.path)) return;
  event.clipboardData.setData("text/plain", current.path);
  event.preventDefault();
});

const moveTo = (seconds) => {
  isMoved = true;
  playFrom(seconds);
};

export const open = (hit, all, seconds = hit.moment.start) => {
  current = hit;
  hits = all;
  startTime = seconds;
  streamStart = null;
  isMoved = seconds !== hit.moment.start;
  failure.hidden = true;
  shareStatus.textContent = "";
  title.textContent = visible(hit.name);
  detail.textContent = describe(hit);
  showPath(hit);
  lines.replaceChildren(...stepItems(hit.steps ?? [], moveTo), ...lineItems(hit.transcript ?? [], moveTo));
  lines.hidden = !lines.children.length;
  const index = hits.indexOf(hit);
  previous.disabled = index <= 0;
  next.disabled = index < 0 || index >= hits.length - 1;
  download.href = hit.video;
  download.download = hit.name;
  download.hidden = false;
  for (const node of [video, track, again]) node.hidden = isImage(hit);
  imageView.hidden = !isImage(hit);
  if (isImage(hit)) showImage(hit);
  else {
    video.poster = hit.thumbnail;
    video.src = `${hit.video}#t=${seconds.toFixed(2)}`;
  }
  if (!dialog.open) dialog.showModal();
  (isImage(hit) ? imageView : video).focus();
  if (!isImage(hit)) timeline.show(hit, hits, moveTo);
  address.watch(hit, seconds);
};

export const close = () => dialog.close();

const showImage = (hit) => {
  unloadVideo();
  imageView.alt = visible(hit.name);
  imageView.src = hit.video;
};

const unloadVideo = () => {
  video.removeAttribute("src");
  video.removeAttribute("poster");
  video.load();
};

const NO_FILE = [404, 409, 410]; // Deleted or changed: it cannot be downloaded either.

const showFailure = (message, status = 0) => {
  failure.replaceChildren(element("strong", "", message));
  failure.hidden = false;
  download.hidden = NO_FILE.includes(status);
  if (download.hidden) return;
  const link = element("a", "", "Download the file to play it elsewhere");
  link.href = current.video;
  link.download = current.name;
  failure.append(link);
};

// A stream may start at a keyframe before the moment; the service reports its start.
const convert = async () => {
  const hit = current;
  const source = `${streamOf(hit)}?start=${startTime.toFixed(2)}`;
  let message = "This browser cannot play this file's codec.";
  let status = 0;
  try {
    const answer = await fetch(source, { method: "HEAD" });
    if (answer.ok) {
      if (hit !== current || !dialog.open) return;
      streamStart = Number(answer.headers.get("Eaglenet-Start"));
      video.src = source;
      return;
    }
    const problem = await fetch(source);
    status = problem.status;
    if (!problem.ok) message = (await problem.json()).error.message;
  } catch {
    message = "The service cannot be reached.";
  }
  if (hit === current) showFailure(message, status);
};

video.addEventListener("loadedmetadata", () => {
  if (!current) return;
  if (!video.videoWidth && streamStart === null) {
    convert();
    return;
  }
  video.currentTime = Math.max(0, startTime - (streamStart ?? 0));
  start();
});

// Browsers cannot show TIFF, HEIC or RAW: show a JPEG instead, or the error if the file is missing.
imageView.addEventListener("error", async () => {
  const hit = current;
  if (!hit || !imageView.getAttribute("src")) return;
  const isThumbnail = imageView.getAttribute("src") === hit.thumbnail;
  let message = isThumbnail ? "This file has no thumbnail." : "";
  let status = 0;
  try {
    const answer = await fetch(hit.video, { headers: { Range: "bytes=0-0" } });
    status = answer.status;
    if (!answer.ok) message = (await answer.json()).error.message;
  } catch {
    message = "The service cannot be reached.";
  }
  if (hit !== current) return;
  if (message) {
    showFailure(message, status);
    return;
  }
  imageView.src = hit.thumbnail; // Until the larger image is decoded.
  const large = new Image();
  large.addEventListener("load", () => { if (hit === current) imageView.src = large.src; }, { once: true });
  large.src = frameOf(hit.thumbnail, 1600);
});

video.addEventListener("timeupdate", () => current && timeline.follow(now()));

video.addEventListener("error", async () => {
  if (!current || !dialog.open || !video.getAttribute("src")) return;
  if (streamStart !== null) {
    showFailure("This browser cannot play this file's codec.");
    return;
  }
  const hit = current;
  // Report a missing or changed file; convert an existing one.
  try {
    const answer = await fetch(hit.video, { headers: { Range: "bytes=0-0" } });
    if (!answer.ok) {
      const { error } = await answer.json();
      if (hit === current) showFailure(error.message, answer.status);
      return;
    }
  } catch {
    if (hit === current) showFailure("The service cannot be reached.");
    return;
  }
  if (hit === current) convert();
});

const step = (by) => {
  const target = hits[hits.indexOf(current) + by];
  if (target) open(target, hits);
};

// A link contains the start of the moment, unless the user chose another position.
const share = async () => {
  const seconds = isMoved ? now() : current.moment.start;
  const link = address.linkTo(current, seconds);
  if (await address.copy(link)) {
    shareStatus.textContent = isImage(current) ? "Link copied." : `Link to ${clock(seconds)} copied.`;
  } else {
    const field = element("input");
    field.readOnly = true;
    field.value = link;
    field.setAttribute("aria-label", "Link to this moment");
    shareStatus.replaceChildren(field);
    field.select();
  }
};

const togglePlay = () => {
  if (isImage(current)) return;
  if (video.paused) start();
  else video.pause();
};

const toggleSound = () => { video.muted = !video.muted; };

const toggleFullscreen = () => {
  if (document.fullscreenElement) document.exitFullscreen();
  else dialog.querySelector(".stage").requestFullscreen?.().catch(() => {});
};

const showState = () => {
  toggle.classList.toggle("playing", !video.paused);
  toggle.setAttribute("aria-label", video.paused ? "Play" : "Pause");
  sound.setAttribute("aria-pressed", String(!video.muted));
};

export const setUp = (onSimilar, onClose) => {
  const similar = () => {
    const hit = current;
    dialog.close();
    onSimilar(hit);
  };
  const replay = () => {
    if (isImage(current)) return;
    isMoved = false;
    playFrom(current.moment.start);
  };
  toggle.addEventListener("click", togglePlay);
  video.addEventListener("click", togglePlay);
  sound.addEventListener("click", toggleSound);
  fullscreen.addEventListener("click", toggleFullscreen);
  for (const event of ["play", "pause", "ended", "volumechange", "emptied"]) video.addEventListener(event, showState);
  previous.addEventListener("click", () => step(-1));
  next.addEventListener("click", () => step(1));
  again.addEventListener("click", replay);
  document.querySelector("#close").addEventListener("click", () => dialog.close());
  document.querySelector("#similar").addEventListener("click", similar);
  document.querySelector("#share").addEventListener("click", share);
  timeline.setUp(moveTo);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // The backdrop.
  });
  const keys = {
    n: () => step(1), p: () => step(-1), r: replay, s: similar, l: share, m: toggleSound, f: toggleFullscreen,
  };
  dialog.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=range])")) return;
    if (event.key === " " && !event.target.matches("button, a, summary, input")) {
      event.preventDefault();
      togglePlay();
    }
    keys[event.key]?.();
  });
  dialog.addEventListener("close", () => {
    const hit = current;
    current = null;
    streamStart = null;
    unloadVideo();
    imageView.removeAttribute("src");
    address.leave();
    onClose(hit);
  });
};
