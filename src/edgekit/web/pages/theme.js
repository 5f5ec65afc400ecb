// Sets the theme before the first paint, so that a dark page never flashes white.
// The choice ("light", "dark", or none for the system's) is in localStorage; the button in main.js changes it.

(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try {
      return localStorage.getItem("edgekit-theme");
    } catch {
      return null; // storage is disabled
    }
  };
  const apply = () => {
    const choice = kept();
    const isChosen = choice === "light" || choice === "dark";
    root.dataset.themeChoice = isChosen ? choice : "auto";
    root.dataset.theme = isChosen ? choice : system.matches ? "dark" : "light";
  };
  system.addEventListener("change", apply);
  root.addEventListener("themechoice", ({ detail }) => {
    try {
      localStorage.setItem("edgekit-theme", detail);
    } catch {
      // storage is disabled: used on this page only
    }
    apply();
  });
  apply();
})();
