// Timeline below the player: seek bar, marks of hits, and thumbnails of the neighbouring clips.

import { clock, element } from "./view.js";

const seekBar = document.querySelector("#place");
const marks = document.querySelector("#marks");
const strip = document.querySelector("#strip");
const time = document.querySelector("#clock");
const NUM_NEIGHBOURS = 12;

let controller = null;
let clips = [];

const percent = (seconds, duration) => `${100 * Math.min(1, Math.max(0, seconds / (duration || 1)))}%`;

const mark = (moment, duration, isCurrent) => {
  const node = element("i", isCurrent ? "shown" : "");
  node.style.setProperty("--from", percent(moment.start, duration));
  node.style.setProperty("--size", percent(moment.end - moment.start, duration));
  return node;
};

const thumbnail = (clip, hit, play) => {
  const item = element("li");
  const button = element("button", "still");
  button.type = "button";
  const image = element("img");
  image.alt = "";
  image.loading = "lazy";
  image.src = clip.thumbnail;
  button.append(image, element("span", "", clock(clip.start)));
  if (clip.clip_id === hit.clip_id) button.setAttribute("aria-current", "true");
  button.addEventListener("click", () => play(clip.start));
  item.append(button);
  return item;
};

export const show = async (hit, hits, play) => {
  controller?.abort();
  const ownController = new AbortController();
  controller = ownController;
  clips = [];
  seekBar.max = Math.max(hit.duration, 0.1);
  seekBar.value = hit.moment.start;
  showTime(hit.moment.start);
  const inFile = hits.filter((each) => each.path === hit.path && each !== hit);
  // A mark of the whole file would only look like a second slider.
  const isWholeFile = hit.moment.end - hit.moment.start >= 0.95 * hit.duration;
  marks.hidden = isWholeFile && !inFile.length;
  marks.replaceChildren(
    ...inFile.map((each) => mark(each.moment, hit.duration, false)),
    mark(hit.moment, hit.duration, true),
  );
  strip.replaceChildren();
  try {
    const answer = await fetch(`/api/clips/${hit.clip_id}/timeline`, { signal: ownController.signal });
    if (!answer.ok) return;
    clips = (await answer.json()).clips;
  } catch {
    return; // The bar works without the clips.
  }
  const current = Math.max(0, clips.findIndex((clip) => clip.clip_id === hit.clip_id));
  const first = Math.max(0, Math.min(current - NUM_NEIGHBOURS / 2, clips.length - NUM_NEIGHBOURS - 1));
  const neighbours = clips.slice(first, first + NUM_NEIGHBOURS + 1);
  strip.replaceChildren(...neighbours.map((clip) => thumbnail(clip, hit, play)));
  strip.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
};

const showTime = (seconds) => {
  seekBar.setAttribute("aria-valuetext", clock(seconds));
  time.textContent = `${clock(seconds)} / ${clock(Number(seekBar.max))}`;
};

// Show the position of the player, in seconds of the file.
export const follow = (seconds) => {
  if (seekBar.matches(":active")) return;
  seekBar.value = seconds;
  showTime(seconds);
};

export const setUp = (play) => {
  seekBar.addEventListener("change", () => play(Number(seekBar.value)));
  seekBar.addEventListener("input", () => showTime(Number(seekBar.value)));
};
