// What a reader would see of a page: its words, what sticks out, what is too small or too pale to be read. One expression.
(() => {
  const root = document.documentElement, width = root.clientWidth;
  const name = element => {
    const words = (element.textContent || '').trim().replace(/\s+/g, ' ').slice(0, 40);
    return `${element.tagName.toLowerCase()}.${element.className.baseVal ?? element.className} "${words}"`;
  };
  const colour = text => {
    const found = text.match(/[\d.]+/g);
    return found ? found.map(Number).concat(found.length === 3 ? [1] : []) : [0, 0, 0, 0];
  };
  const over = (top, below) => [0, 1, 2].map(place => top[place] * top[3] + below[place] * (1 - top[3])).concat([1]);
  const behind = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    const scheme = matchMedia('(prefers-color-scheme: dark)').matches && getComputedStyle(root).colorScheme.includes('dark');
    return layers.reverse().reduce((below, layer) => over(layer, below), scheme ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  // Relative luminance and contrast ratio: WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio.
  const luminance = rgb => {
    const linear = value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.slice(0, 3).map(value => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  // What a text of a drawing stands on: the last box drawn before it that holds its middle.
  const under = (text, svg) => {
    const box = text.getBoundingClientRect(), x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
    return [...svg.querySelectorAll('rect')].reduce((below, rect) => {
      const place = rect.getBoundingClientRect(), style = getComputedStyle(rect);
      const before = rect.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      if (!before || x < place.left || x > place.right || y < place.top || y > place.bottom || style.fill === 'none') return below;
      const fill = colour(style.fill);
      return over([...fill.slice(0, 3), fill[3] * style.fillOpacity * style.opacity], below);
    }, behind(svg));
  };
  const scrolls = element => element.closest('.scroll');
  const outside = [], small = [], pale = [];
  for (const element of document.body.querySelectorAll('*')) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || getComputedStyle(element).visibility === 'hidden') continue;
    if (!scrolls(element) && (box.left < -0.5 || box.right > width + 0.5)) outside.push(name(element));
    const svg = element.ownerSVGElement;
    if (svg && !element.closest('defs')) {
      const frame = svg.getBoundingClientRect();
      const beside = box.left < frame.left - 2 || box.right > frame.right + 2;
      if (beside || box.top < frame.top - 2 || box.bottom > frame.bottom + 2) outside.push(name(element));
    }
    const words = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!words || ['TITLE', 'DESC', 'STYLE'].includes(element.tagName.toUpperCase())) continue;
    const style = getComputedStyle(element);
    const scale = svg ? element.getScreenCTM().a : 1;
    const size = parseFloat(style.fontSize) * scale;
    if (size < 8) small.push(size.toFixed(1) + ' px: ' + name(element));
    const ground = svg ? under(element, svg) : behind(element);
    const ratio = contrast(over(colour(svg ? style.fill : style.color), ground), ground);
    if (ratio < 4.5) pale.push(ratio.toFixed(1) + ': ' + name(element));
  }
  return {
    words: document.body.innerText, title: document.title, data: {...root.dataset}, scripts: document.scripts.length,
    elements: document.body.querySelectorAll('*').length, overflow: root.scrollWidth - width, outside, small, pale,
  };
})()
