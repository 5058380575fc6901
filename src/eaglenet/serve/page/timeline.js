// The file under the player: a bar to move on, marks of what was found, and the clips around.

import { clock, element } from "./view.js";

const place = document.querySelector("#place");
const marks = document.querySelector("#marks");
const strip = document.querySelector("#strip");
const time = document.querySelector("#clock");
const AROUND = 12;

let running = null;
let clips = [];

const share = (seconds, duration) => `${100 * Math.min(1, Math.max(0, seconds / (duration || 1)))}%`;

const mark = (moment, duration, isShown) => {
  const made = element("i", isShown ? "shown" : "");
  made.style.setProperty("--from", share(moment.start, duration));
  made.style.setProperty("--size", share(moment.end - moment.start, duration));
  return made;
};

const thumbnail = (clip, hit, play) => {
  const item = element("li");
  const button = element("button", "still");
  button.type = "button";
  const picture = element("img");
  picture.alt = "";
  picture.loading = "lazy";
  picture.src = clip.thumbnail;
  button.append(picture, element("span", "", clock(clip.start)));
  if (clip.clip_id === hit.clip_id) button.setAttribute("aria-current", "true");
  button.addEventListener("click", () => play(clip.start));
  item.append(button);
  return item;
};

export const show = async (hit, hits, play) => {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  clips = [];
  place.max = Math.max(hit.duration, 0.1);
  place.value = hit.moment.start;
  showTime(hit.moment.start);
  const inFile = hits.filter((each) => each.path === hit.path && each !== hit);
  marks.replaceChildren(
    ...inFile.map((each) => mark(each.moment, hit.duration, false)),
    mark(hit.moment, hit.duration, true),
  );
  strip.replaceChildren();
  try {
    const answer = await fetch(`/api/clips/${hit.clip_id}/timeline`, { signal: mine.signal });
    if (!answer.ok) return;
    clips = (await answer.json()).clips;
  } catch {
    return; // The bar works without the clips.
  }
  const here = Math.max(0, clips.findIndex((clip) => clip.clip_id === hit.clip_id));
  const first = Math.max(0, Math.min(here - AROUND / 2, clips.length - AROUND - 1));
  const around = clips.slice(first, first + AROUND + 1);
  strip.replaceChildren(...around.map((clip) => thumbnail(clip, hit, play)));
  strip.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
};

const showTime = (seconds) => {
  place.setAttribute("aria-valuetext", clock(seconds));
  time.textContent = `${clock(seconds)} / ${clock(Number(place.max))}`;
};

// Where the player is, in seconds of the file.
export const follow = (seconds) => {
  if (place.matches(":active")) return;
  place.value = seconds;
  showTime(seconds);
};

export const setUp = (play) => {
  place.addEventListener("change", () => play(Number(place.value)));
  place.addEventListener("input", () => showTime(Number(place.value)));
};
