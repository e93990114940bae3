/* Colour scales by lightness: straight lines in OKLCH, so that equal steps in value are equal steps to the eye
   (B. Ottosson, "A perceptual color space for image processing", 2020). */

const darkQuery = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => darkQuery.matches;

function linearFromOklch(l, c, h) {
  const a = c * Math.cos((h * Math.PI) / 180);
  const b = c * Math.sin((h * Math.PI) / 180);
  const x = (l + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const y = (l - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const z = (l - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * x - 3.3077115913 * y + 0.2309699292 * z,
    -1.2684380046 * x + 2.6097574011 * y - 0.3413193965 * z,
    -0.0041960863 * x - 0.7034186147 * y + 1.707614701 * z,
  ];
}

/* The colour as [r, g, b] of 0..255; what a screen cannot show loses chroma, not lightness. */
function oklch(l, c, h) {
  let linear = linearFromOklch(l, c, h);
  while (c > 0 && linear.some((v) => v < -1e-4 || v > 1.0001)) {
    c = Math.max(0, c - 0.005);
    linear = linearFromOklch(l, c, h);
  }
  return linear.map((v) => {
    const u = Math.min(1, Math.max(0, v));
    return Math.round(255 * (u <= 0.0031308 ? 12.92 * u : 1.055 * u ** (1 / 2.4) - 0.055));
  });
}

const mix = (a, b, t) => a + (b - a) * t;

/* 0..1: from the ground of the page to a full colour, by way of the hues, so that the upper half has differences too. */
function sequential(t) {
  return isDark()
    ? oklch(mix(0.27, 0.9, t), mix(0.05, 0.14, Math.min(1, 1.5 * t)), mix(290, 110, t))
    : oklch(mix(0.975, 0.4, t), mix(0.025, 0.16, Math.min(1, 1.5 * t)), mix(105, 285, t));
}

/* -1..1: less is orange, more is blue, nothing is the ground of the page. */
function diverging(t) {
  const size = Math.min(1, Math.abs(t));
  const [ground, full] = isDark() ? [0.3, 0.82] : [0.965, 0.54];
  return oklch(mix(ground, full, size), mix(0.005, 0.16, size), t < 0 ? 50 : 255);
}

const css = (rgb) => `rgb(${rgb.join(",")})`;

/* WCAG 2 relative luminance. */
function luminance(rgb) {
  const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/* Black or white, whichever is read better: the worse of the two is never needed, so contrast is 4.58 at least. */
function inkOn(rgb) {
  const y = luminance(rgb);
  return 1.05 / (y + 0.05) > (y + 0.05) / 0.05 ? "#ffffff" : "#000000";
}

/* 256 ready pairs of background and ink. */
function palette(scale, low, high) {
  return Array.from({ length: 256 }, (_, k) => {
    const rgb = scale(mix(low, high, k / 255));
    return { background: css(rgb), ink: inkOn(rgb) };
  });
}

function plotlyScale(scale, low, high) {
  return Array.from({ length: 17 }, (_, k) => [k / 16, css(scale(mix(low, high, k / 16)))]);
}

/* A given colour, light enough for a dark page. */
function legible(hex) {
  if (!isDark()) return hex;
  const rgb = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  return css(rgb.map((v) => Math.round(mix(v, 255, luminance(rgb) < 0.12 ? 0.55 : 0.3))));
}

const depthColour = (k, n) => css(sequential(n > 1 ? mix(0.3, 1, k / (n - 1)) : 0.7));
