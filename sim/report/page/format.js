// How numbers are read: units that fit the value, thousands in groups, shares in percent. Fields that a
// report leaves out are 0, "" or [], and 64-bit integers are texts.
"use strict";

const num = (value) => (value === undefined || value === null ? 0 : Number(value));
const list = (value) => value || [];
const sum = (values) => values.reduce((total, value) => total + value, 0);

const MINUTE = 60e3, HOUR = 3600e3;  // ms
// From the finest; a value is read best in the last one that it reaches `from` of.
const TIME_UNITS = [
  { name: "µs", size: 1e-3, from: 0 }, { name: "ms", size: 1, from: 0.5 },
  { name: "s", size: 1e3, from: 1e3 }, { name: "min", size: MINUTE, from: 5 * MINUTE },
  { name: "h", size: HOUR, from: 3 * HOUR },
];
const BYTE_UNITS = ["B", "kB", "MB", "GB", "TB", "PB"].map(
  (name, i) => ({ name, size: 1000 ** i, from: i === 0 ? 0 : 1000 ** i }));

function unitFor(units, value) {
  const size = Math.abs(value);
  return units.reduce((best, unit) => (size >= unit.from ? unit : best), units[0]);
}

// So many digits that count, never an exponent: 1,234,568; 12.3; 0.0123.
function decimal(value, digits = 4) {
  if (!Number.isFinite(value)) return "n/a";
  if (Math.abs(value) >= 10 ** digits) return Math.round(value).toLocaleString("en-US");
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits });
}

const count = (value) => Math.round(num(value)).toLocaleString("en-US");
const percent = (share) => (100 * num(share)).toFixed(2) + " %";
const share = (part, whole) => (num(whole) === 0 ? 0 : num(part) / num(whole));
const gib = (value) => decimal(num(value)) + " GiB";

function plural(value, noun) {
  return count(value) + " " + noun + (num(value) === 1 ? "" : "s");
}

function bytes(value) {
  const unit = unitFor(BYTE_UNITS, num(value));
  return decimal(num(value) / unit.size) + " " + unit.name;
}

// "23 min 20 s", "1.42 s", "85.3 ms".
function span(ms) {
  const value = num(ms);
  if (!Number.isFinite(value)) return "n/a";
  if (value === 0) return "0 ms";
  const unit = value < MINUTE ? unitFor(TIME_UNITS, value) : TIME_UNITS[value < HOUR ? 3 : 4];
  if (value < MINUTE) return decimal(value / unit.size, 3) + " " + unit.name;
  const small = unit.size === MINUTE ? 1e3 : MINUTE;
  const rounded = Math.round(value / small) * small;
  const rest = Math.round((rounded % unit.size) / small);
  const text = count(Math.floor(rounded / unit.size)) + " " + unit.name;
  return rest === 0 ? text : text + " " + rest + (small === MINUTE ? " min" : " s");
}

function ratio(value) {
  if (!value || num(value.denominator) === 0) return "n/a";
  return `${percent(value.value)} (${count(value.numerator)} of ${count(value.denominator)})`;
}

// --- Kinds of values on an axis: { unit, text(value) in a tooltip } ---

const KINDS = {
  number: { text: (value) => decimal(value, 6) },
  percent: { text: (value) => decimal(value, 4) + " %" },
  ms: { units: TIME_UNITS, text: span },
  gib: { text: (value) => decimal(value, 4) + " GiB" },
  bytes: { units: BYTE_UNITS, text: bytes },
};

// Whole steps of 1, 2 or 5 times a power of ten, about `wanted` of them from `low` to `high`.
function evenTicks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const ticks = [];  // "+ 0" makes no zero negative
  for (let i = Math.ceil(low / step - 1e-6); i * step <= high + step * 1e-6; ++i) ticks.push(i * step + 0);
  return ticks;
}

// Of a time axis too: round numbers of its own units.
function logTicks(low, high, kind, wanted) {
  let candidates = [];
  if (kind.units === TIME_UNITS) {
    for (let power = 1e-3; power < 1000; power *= 10) candidates.push(power, 2 * power, 5 * power);
    candidates = candidates.filter((value) => value < 1e3);
    for (const second of [1, 2, 5, 10, 30]) candidates.push(second * 1e3);
    for (const minute of [1, 2, 5, 10, 30]) candidates.push(minute * MINUTE);
    for (const hour of [1, 2, 5, 10, 24, 48, 120, 240, 1000]) candidates.push(hour * HOUR);
  } else {
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
      for (const factor of [1, 2, 5]) candidates.push(factor * 10 ** power);
    }
  }
  const inside = candidates.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const stride = Math.ceil(inside.length / Math.max(2, wanted));
  return inside.filter((_, i) => i % stride === 0);
}
