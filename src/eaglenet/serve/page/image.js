// Search with an image: chosen, dropped anywhere on the page, or pasted.

const button = document.querySelector("#choose-image");
const chooser = document.querySelector("#image-file");
const overlay = document.querySelector("#drop");

// Some browsers know no type for photographs of phones.
const isImageFile = (file) => file.type.startsWith("image/") || /\.(avif|heic|heif)$/i.test(file.name);

let isAllowed = false;

export const setAllowed = (value) => {
  isAllowed = value;
  button.hidden = !value;
};

const REFUSAL = "Search with images is switched off: start the service with --allow-uploads.";

const NO_IMAGE = "This is not an image: search with a JPEG, PNG, WebP, AVIF or HEIC file.";

export const setUp = (onImage, onRefusal) => {
  const handle = (files) => {
    if (!files?.length) return;
    const file = [...files].find(isImageFile);
    if (!isAllowed) onRefusal(REFUSAL);
    else if (file) onImage(file);
    else onRefusal(NO_IMAGE);
  };
  button.addEventListener("click", () => chooser.click());
  chooser.addEventListener("change", () => {
    handle([...chooser.files]);
    chooser.value = "";
  });
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    overlay.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) overlay.hidden = true;
  });
  addEventListener("drop", (event) => {
    overlay.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    handle(event.dataTransfer.files);
  });
  addEventListener("paste", (event) => handle(event.clipboardData?.files));
};
