// Results as cards. Text from the store only ever becomes text nodes, never markup.

export const clock = (seconds) => {
  const tenths = Math.round(seconds * 10);
  const hours = Math.floor(tenths / 36000);
  const minutes = Math.floor(tenths / 600) % 60;
  const rest = ((tenths % 600) / 10).toFixed(1).padStart(4, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
};

export const span = (moment) => `${clock(moment.start)} \u2013 ${clock(moment.end)}`;

// A photograph is the one file without a length.
export const isPicture = (hit) => hit.duration === 0;

export const element = (name, className, text) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

// The same file, made playable for any browser while it is sent.
export const streamOf = (hit) => hit.video.replace(/video$/, "stream");

export const folderOf = (hit) => hit.path.slice(0, -hit.name.length).split("/").filter(Boolean).pop() ?? "";

export const picture = (source, frame) => {
  const made = element("img", "picture");
  made.alt = "";
  made.loading = "lazy";
  made.decoding = "async";
  made.addEventListener("load", () => {
    showWhole(frame, made);
    if (devicePixelRatio > 1) sharpen(made);
  }, { once: true });
  made.src = source;
  return made;
};

// The frame of a thumbnail, decoded from the file in a larger size.
export const frameOf = (thumbnail, side) => thumbnail.replace(/thumbnail$/, `frame?side=${side}`);

// Stored thumbnails are small; on a dense screen a larger one replaces them when it is there.
// Two at a time: a browser has few connections, and the service few decoders.
const MAX_SHARPENING = 2;
const waitingImages = [];
let sharpening = 0;

const sharpenNext = () => {
  const made = waitingImages.shift();
  if (!made) return;
  const source = frameOf(made.src, 640);
  if (!made.isConnected || source === made.src) { // Another search has replaced it.
    sharpenNext();
    return;
  }
  sharpening += 1;
  const large = new Image();
  large.addEventListener("load", () => { made.src = source; }, { once: true });
  for (const end of ["load", "error"]) {
    large.addEventListener(end, () => { sharpening -= 1; sharpenNext(); }, { once: true });
  }
  large.src = source;
};

const sharpen = (made) => {
  waitingImages.push(made);
  if (sharpening < MAX_SHARPENING) sharpenNext();
};

// How sure the model is where that was measured, else the bare score; that of words or of a sequence
// says nothing, nor does one below 0.
export const isMeasured = (hit) => typeof hit.confidence === "number";
export const scoreOf = (hit) => (hit.steps?.length || hit.transcript?.length || hit.score < 0 ? "" : hit.score?.toFixed(3) ?? "");
const strength = (hit) => (isMeasured(hit) ? hit.match : scoreOf(hit));

// Day of the recording as people write it here; empty where the file does not say.
export const day = (hit) => (typeof hit.recorded === "number"
  ? new Date(1000 * hit.recorded).toLocaleDateString(undefined, { dateStyle: "medium" }) : "");

const where = (hit) => {
  const bar = element("span", "where");
  const mark = element("i");
  const share = (seconds) => `${100 * Math.min(1, Math.max(0, seconds / (hit.duration || 1)))}%`;
  mark.style.setProperty("--from", share(hit.moment.start));
  mark.style.setProperty("--size", share(hit.moment.end - hit.moment.start));
  bar.append(mark);
  return bar;
};

// A file of which parts cannot be read; the player says which.
export const damaged = (hit) => {
  const mark = element("span", "damaged", "damaged");
  mark.title = hit.damage;
  return mark;
};

// Its name for those who do not see it is its text: what is visible and what is heard agree.
export const card = (hit, open, words = null) => {
  const item = element("li");
  const button = element("button", "card");
  button.type = "button";
  button.title = hit.path;
  const frame = element("span", "frame");
  frame.append(
    picture(hit.thumbnail, frame),
    element("span", "rank", hit.rank),
    element("span", "span", isPicture(hit) ? "picture" : span(hit.moment)),
  );
  const text = element("span", "text");
  const facts = element("span", "facts");
  const place = [folderOf(hit), day(hit)].filter(Boolean).join(" \u00b7 ");
  const more = hit.more.length ? `+${hit.more.length} more` : place;
  facts.append(element("span", "folder", more), element("span", isMeasured(hit) ? `score ${hit.match}` : "score", strength(hit)));
  if (hit.damage) facts.firstChild.after(damaged(hit));
  if (hit.from_keyframes) facts.firstChild.after(element("span", "folder", "from keyframes"));
  text.append(element("span", "name", hit.name));
  if (words) text.append(words);
  text.append(facts);
  button.append(frame, ...(isPicture(hit) ? [] : [where(hit)]), text);
  button.addEventListener("click", () => open(hit));
  if (!isPicture(hit)) preview(button, frame, hit);
  item.append(button);
  return item;
};

// Wide pictures fill the frame; tall and square ones are shown whole before a blurred copy.
const showWhole = (frame, picture) => {
  if (picture.naturalWidth >= 1.25 * picture.naturalHeight) return;
  const backdrop = picture.cloneNode();
  backdrop.className = "backdrop";
  picture.before(backdrop);
  frame.classList.add("tall");
};

// Only a pointer that can hover starts a preview; on a phone a tap opens the player.
const HOVER_MILLISECONDS = 180;
const preview = (button, frame, hit) => {
  let timer = 0;
  let video = null;
  const stop = () => {
    clearTimeout(timer);
    if (!video) return;
    video.removeAttribute("src");
    video.load(); // Lets go of the connection.
    video.remove();
    video = null;
  };
  const start = () => {
    stop();
    video = element("video");
    video.muted = true;
    video.playsInline = true;
    video.tabIndex = -1;
    video.setAttribute("aria-hidden", "true");
    const { start: from, end } = hit.moment;
    let isConverted = false;
    video.addEventListener("loadedmetadata", (event) => {
      if (!isConverted) event.target.currentTime = from;
    });
    video.addEventListener("playing", (event) => event.target.classList.add("live"));
    video.addEventListener("timeupdate", (event) => {
      if (!isConverted && event.target.currentTime > end + 0.2) event.target.currentTime = from;
    });
    video.addEventListener("ended", (event) => {
      event.target.currentTime = isConverted ? 0 : from;
      event.target.play().catch(() => {});
    });
    video.addEventListener("error", (event) => {
      if (isConverted || !event.target.getAttribute("src")) { stop(); return; } // The thumbnail stays.
      isConverted = true;
      event.target.src = `${streamOf(hit)}?start=${from.toFixed(2)}`;
      event.target.play().catch(() => {});
    });
    frame.querySelector(".picture").after(video);
    video.src = `${hit.video}#t=${from.toFixed(2)}`;
    video.play().catch(() => {});
  };
  button.addEventListener("pointerenter", (event) => {
    if (event.pointerType !== "touch") timer = setTimeout(start, HOVER_MILLISECONDS);
  });
  button.addEventListener("pointerleave", stop);
  button.addEventListener("focus", () => {
    if (button.matches(":focus-visible")) timer = setTimeout(start, 2 * HOVER_MILLISECONDS);
  });
  button.addEventListener("blur", stop);
  button.addEventListener("click", stop);
};

export const waiting = (count) => Array.from({ length: count }, () => {
  const item = element("li", "waiting");
  item.setAttribute("aria-hidden", "true");
  item.append(element("span", "card"));
  return item;
});
