// The theme before the first paint: a page that was set to dark never flashes white.
try {
  const kept = localStorage.getItem("edgekit-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch {
  // storage is switched off: the system's theme holds
}
