"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const at = (id) => document.getElementById(id);
  const rungs = all("details.rung").map((box) => ({
    box,
    row: document.querySelector(`tr[data-rung="${CSS.escape(box.id)}"]`),
    archs: box.dataset.archs.split(" "),
    // what is searched: all but the changes, which hold the parent's words too
    text: [...box.children].filter((part) => !part.matches(".changes"))
      .map((part) => part.textContent).join(" ").toLowerCase(),
  }));

  function narrow() {
    const words = at("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const series = at("series").value;
    const arch = at("arch").value;
    let shown = 0;
    for (const rung of rungs) {
      const fits = (series === "all" || series === rung.box.dataset.series)
        && (arch === "all" || rung.archs.includes(arch))
        && words.every((word) => rung.text.includes(word));
      rung.box.hidden = !fits;
      if (rung.row) rung.row.hidden = !fits;
      shown += fits;
    }
    for (const group of all("section.series"))
      group.hidden = !group.querySelector("details.rung:not([hidden])");
    for (const group of all("tbody.series"))
      group.hidden = !group.querySelector("tr[data-rung]:not([hidden])");
    at("none").hidden = shown > 0;
    at("count").textContent = `${shown} of ${rungs.length} rungs`;
  }

  // A link to a rung opens it, and shows it where the search had hidden it.
  function follow() {
    let id = "";
    try { id = decodeURIComponent(location.hash.slice(1)); } catch { return; }
    const box = id && at(id);
    if (!box || !box.matches("details.rung")) return;
    if (box.hidden) {
      at("controls").reset();
      colour();
      narrow();
    }
    box.open = true;
    box.scrollIntoView();
  }

  function colour() {
    const chosen = at("colours").value;
    document.documentElement.style.colorScheme = chosen === "system" ? "" : chosen;
  }

  function openAll(open) {
    for (const { box } of rungs) if (!box.hidden) box.open = open;
  }

  // On paper what is folded is lost: lessons are opened, changes and long tables stay as they are.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = rungs.filter(({ box }) => !box.open && !box.hidden);
    for (const { box } of closed) box.open = true;
  });
  addEventListener("afterprint", () => {
    for (const { box } of closed) box.open = false;
  });

  for (const id of ["search", "series", "arch"]) at(id).addEventListener("input", narrow);
  at("colours").addEventListener("input", colour);
  at("open").addEventListener("click", () => openAll(true));
  at("close").addEventListener("click", () => openAll(false));
  at("controls").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) follow(); // no hashchange then
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    at("search").focus();
  });

  // What a link leads to is not to lie under the bar.
  function leaveRoom() {
    const bar = document.querySelector(".bar");
    const sticks = getComputedStyle(bar).position === "sticky";
    document.documentElement.style.setProperty("--bar", `${(sticks ? bar.offsetHeight : 0) + 8}px`);
  }

  at("controls").hidden = false;
  colour();
  narrow();
  leaveRoom();
  addEventListener("resize", leaveRoom);
  follow();
})();
