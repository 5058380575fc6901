// The list of keys.

const dialog = document.querySelector("#help");

export const show = () => dialog.showModal();

export const setUp = () => {
  document.querySelector("#open-help").addEventListener("click", show);
  document.querySelector("#close-help").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // The backdrop.
  });
};
