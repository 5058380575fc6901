// The dialog that plays a hit from its moment on; what the browser cannot play comes converted.
// A photograph is shown in the place of the video.

import * as address from "./address.js";
import * as timeline from "./timeline.js";
import { clock, day, element, folderOf, frameOf, isMeasured, isPicture, scoreOf, span, streamOf } from "./view.js";
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
const path = document.querySelector("#player-path");
const toggle = document.querySelector("#toggle");
const sound = document.querySelector("#sound");
const fullscreen = document.querySelector("#fullscreen");

let shown = null;
let hits = [];
let wanted = 0; // Second of the file to play from.
let begin = null; // Second of the file at which a converted stream begins; null: the file itself.
let isMoved = false; // Whether someone chose another position than that of the moment.

const now = () => (begin ?? 0) + video.currentTime;

const start = () => video.play().catch(() => {}); // A browser may wait for a click on Play.

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

const sureness = (hit) => (isMeasured(hit)
  ? `${hit.match} (${Math.round(100 * hit.confidence)}%)` : scoreOf(hit) && `score ${scoreOf(hit)}`);

const describe = (hit) => {
  const score = hit.score === null ? [] : [`best at ${clock(hit.moment.best)}`, sureness(hit)];
  const recording = [day(hit), hit.camera, hit.damage];
  if (isPicture(hit)) return ["picture", ...score.slice(1), ...recording].filter(Boolean).join(" \u00b7 ");
  const where = hit.score === null ? clock(hit.duration) : `${span(hit.moment)} of ${clock(hit.duration)}`;
  return [where, ...score, ...recording].filter(Boolean).join(" \u00b7 ");
};

// The folder is enough to recognise a file; the whole path unfolds.
const showPath = (hit) => {
  path.open = false;
  path.querySelector("summary").textContent = folderOf(hit) || "Path";
  path.querySelector("code").textContent = hit.path;
};

const moveTo = (seconds) => {
  isMoved = true;
  playFrom(seconds);
};

export const open = (hit, all, seconds = hit.moment.start) => {
  shown = hit;
  hits = all;
  wanted = seconds;
  begin = null;
  isMoved = seconds !== hit.moment.start;
  cannot.hidden = true;
  shared.textContent = "";
  title.textContent = hit.name;
  detail.textContent = describe(hit);
  showPath(hit);
  lines.replaceChildren(...words.steps(hit.steps ?? [], moveTo), ...words.list(hit.transcript ?? [], moveTo));
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
  if (!isPicture(hit)) timeline.show(hit, hits, moveTo);
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

// Browsers show no TIFF, HEIC or RAW; a JPEG of it comes instead. A file that is gone says so.
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
  if (message) {
    say(message);
    return;
  }
  still.src = hit.thumbnail; // Until the larger one is decoded.
  const large = new Image();
  large.addEventListener("load", () => { if (hit === shown) still.src = large.src; }, { once: true });
  large.src = frameOf(hit.thumbnail, 1600);
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

// A link names the moment, wherever playback is by now, unless another position was chosen.
const share = async () => {
  const seconds = isMoved ? now() : shown.moment.start;
  const link = address.linkTo(shown, seconds);
  if (await address.copy(link)) {
    shared.textContent = isPicture(shown) ? "Link copied." : `Link to ${clock(seconds)} copied.`;
  } else {
    const field = element("input");
    field.readOnly = true;
    field.value = link;
    field.setAttribute("aria-label", "Link to this moment");
    shared.replaceChildren(field);
    field.select();
  }
};

const togglePlay = () => {
  if (isPicture(shown)) return;
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
    const hit = shown;
    dialog.close();
    onSimilar(hit);
  };
  const replay = () => {
    if (isPicture(shown)) return;
    isMoved = false;
    playFrom(shown.moment.start);
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
    const hit = shown;
    shown = null;
    begin = null;
    letGo();
    still.removeAttribute("src");
    address.leave();
    onClose(hit);
  });
};
