//! The status page in a real browser, on a real daemon. Run by `tests/browser/run`.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod webdriver;
mod world;

use plimsoll::demo::args::DemoScenario;
use serde_json::{Value, json};

use crate::webdriver::{Browser, key};
use crate::world::{HOSTILE, World};

/// A variant of the demo, and its row and its details on the page.
const VARIANT: &str = "demo/llama-l40s";
const ROW: &str = "document.querySelector('[data-variant=\"demo/llama-l40s\"]')";
const DETAILS: &str = "document.getElementById('details-demo/llama-l40s')";

/// What the page shows while the daemon answers it in time.
const LIVE: &str = "document.getElementById('live').dataset.state === 'live'";

/// Opens the page and waits until it shows the fleet.
async fn open(world: &World) -> Browser {
    world.until_decided().await;
    let browser = Browser::open().await;
    browser.go(&world.url()).await;
    browser.until(ROW).await;
    browser
}

/// The number of every variant on the page, by its fragment.
async fn numbers(browser: &Browser) -> Value {
    let script = "return Object.fromEntries([...document.querySelectorAll('[data-variant]')].map(
        row => [row.dataset.variant, row.querySelector('[data-field=desired]').textContent]));";
    browser.js(script).await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_variant_is_shown_with_the_number_of_the_api_and_nothing_else_is_loaded() {
    let world = World::start(0).await;
    let browser = open(&world).await;
    let mut agreed = false;
    // Between the two questions a number may change, so they are asked until they agree.
    for _ in 0..600 {
        let decisions = world.ask("decisions").await;
        let want = decisions["variants"].as_array().unwrap().iter().map(|variant| {
            let name = ["namespace", "variant"].map(|field| variant[field].as_str().unwrap());
            let number = variant["desired"].as_u64().map_or("–".into(), |it| it.to_string());
            (name.join("/"), Value::from(number))
        });
        agreed = numbers(&browser).await == Value::Object(want.collect());
        if agreed {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert!(agreed, "{} on the page", numbers(&browser).await);
    let names = "return [...document.querySelectorAll('.model-name')].map(it => it.textContent);";
    let names = browser.js(names).await;
    assert!(names.as_array().unwrap().contains(&json!(HOSTILE)), "{names}");
    assert_eq!(browser.js("return document.querySelectorAll('main img').length;").await, 0);
    assert_eq!(browser.js("return window.owned ?? null;").await, Value::Null);
    browser.until(LIVE).await;
    browser.screenshot("light").await;

    let problems = browser.log("browser").await;
    assert!(problems.is_empty(), "{problems:?}");
    let mut asked = 0;
    for entry in browser.log("performance").await {
        let event: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
        let event = &event["message"];
        if event["method"] == "Network.requestWillBeSent" {
            let url = event["params"]["request"]["url"].as_str().unwrap();
            let page = event["params"]["documentURL"].as_str().unwrap_or_default();
            let ours = url.starts_with(&world.url()) || url.starts_with("data:");
            assert!(ours || !page.starts_with(&world.url()), "{url}");
            asked += usize::from(ours);
        }
    }
    assert!(asked >= 4, "the page and its questions are in the log");
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_shows_its_adapters_and_where_they_should_be() {
    let world = World::play(DemoScenario::Lora, 0).await;
    world.until_decided().await;
    let browser = Browser::open().await;
    browser.go(&format!("{}#demo/qwen-lora-a100", world.url())).await;
    let pool = "document.querySelector('.details .pool')";
    let cells = |table: usize, column: usize| {
        format!(
            "[...{pool}.querySelectorAll('table')[{table}].querySelectorAll('tbody tr')].map(
                row => row.children[{column}].textContent)"
        )
    };
    browser
        .until(&format!("{pool} && !{pool}.hidden && {}.includes('support')", cells(0, 0)))
        .await;
    browser.until(&format!("{}.some(keep => keep.includes('support'))", cells(1, 2))).await;
    let need = browser.js(&format!("return {pool}.querySelector('.answer').textContent;")).await;
    assert!(need.as_str().unwrap().contains("at 2 slots per replica"), "{need}");
    browser.screenshot("pool").await;
    let problems = browser.log("browser").await;
    assert!(problems.is_empty(), "{problems:?}");
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terms_of_a_need_are_a_table_under_the_step_that_has_them() {
    let world = World::start(0).await;
    let browser = open(&world).await;
    browser.js(&format!("{ROW}.querySelector('button').click();")).await;
    browser.until(&format!("{DETAILS} && {DETAILS}.querySelector('.steps li')")).await;
    let tables = format!("return {DETAILS}.querySelectorAll('.terms').length;");
    assert_eq!(browser.js(&tables).await, 0, "saturation has no terms");
    // What a fleet shows only after minutes of load.
    let term = |words: &str, over: Value, decides: bool| json!({"words": words, "per_second": 12.345, "decides": decides, "window_seconds": over});
    let terms = [
        term("arrive now", Value::Null, false),
        term("in bursts", json!(4), true),
        term(HOSTILE, Value::Null, false),
    ];
    let foreseen = json!({
        "terms": terms, "horizon_seconds": 142.0, "total_per_second": 20.0, "held_per_second": 30.0,
        "held_since": "2026-11-21T09:30:00Z", "bridge_per_second": null,
    });
    let carries = json!({
        "per_second": 14.0, "low_per_second": 13.0, "high_per_second": 15.2, "said_by": "card",
        "bound_by": "seats",
    });
    let step = json!({"foreseen": foreseen, "carries": carries});
    let script = format!(
        "const table = makeTerms(termLines({step}))[0];
         {DETAILS}.querySelector('.steps li').append(table);
         return [...table.querySelectorAll(':scope > tbody > tr')].map(
             row => [row.className, ...[...row.children].map(it => it.textContent)].join('|'));"
    );
    let rows = browser.js(&script).await;
    let rows: Vec<&str> = rows.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert_eq!(rows[..2], ["|arrive now|12.35", "decides|in bursts of 4 s|12.35"]);
    assert_eq!(rows[2], format!("|{HOSTILE}|12.35"));
    assert_eq!(rows[3], "decides|needed in 142 s|20.00");
    assert!(rows[4].starts_with("decides|held since ") && rows[4].ends_with("|30.00"), "{rows:?}");
    assert_eq!(
        rows[5..],
        [
            "decides|capacity per replica from a card, bound by places in the batch|14.00",
            "|in 95 of 100 cases|13.00 to 15.20"
        ]
    );
    assert_eq!(browser.js("return window.owned ?? null;").await, Value::Null);
    browser.js(&format!("{DETAILS}.querySelector('.steps').scrollIntoView();")).await;
    browser.screenshot("terms").await;
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variant_is_opened_read_and_closed_by_keyboard_alone() {
    let world = World::start(0).await;
    let browser = open(&world).await;
    let on_variant = format!("{ROW}.contains(document.activeElement)");
    let mut tabs = 0;
    while browser.js(&format!("return {on_variant};")).await != true {
        browser.press(&[key::TAB]).await;
        tabs += 1;
        assert!(tabs < 100, "tab never gets to the variant");
    }
    let outline = "return getComputedStyle(document.activeElement).outlineStyle;";
    assert_eq!(browser.js(outline).await, "solid", "the focus can be seen");
    browser.press(&[key::ENTER]).await;
    browser.until(DETAILS).await;
    assert_eq!(browser.js("return location.hash.slice(1);").await, VARIANT);
    // A line needs two samples of the load, which are ten seconds apart.
    browser.until(&format!("Number({DETAILS}.dataset.drawn) >= 2")).await;
    for css in ["s-desired", "s-current", "s-saturation", "s-kv", "s-running"] {
        let path = format!("{DETAILS}.querySelector('path.series.{css}')");
        browser.until(&format!("{path}.getAttribute('d').includes('L')")).await;
    }
    let steps =
        format!("return [...{DETAILS}.querySelectorAll('.steps li')].map(it => it.textContent);");
    let steps = browser.js(&steps).await;
    let chain = steps.as_array().unwrap();
    assert!(chain[0].as_str().unwrap().starts_with("The load asks for"), "{steps}");
    browser.screenshot("details").await;

    browser.press(&[key::TAB]).await;
    let in_chart = "return document.activeElement.classList.contains('stage');";
    assert_eq!(browser.js(in_chart).await, true);
    browser.press(&[key::LEFT, key::LEFT, key::LEFT]).await;
    let said = "return document.activeElement.getAttribute('aria-valuetext');";
    let said = browser.js(said).await;
    assert!(said.as_str().unwrap().contains("desired"), "{said}");
    assert!(!said.as_str().unwrap().starts_with("now"), "it is read in the past: {said}");

    browser.press(&[key::ESCAPE]).await;
    browser.until(&format!("!{DETAILS}")).await;
    assert_eq!(browser.js(&format!("return {on_variant};")).await, true, "the focus is kept");
    assert_eq!(browser.js("return location.hash;").await, "");
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_fits_a_narrow_screen_and_is_legible_in_both_themes() {
    let world = World::start(0).await;
    let browser = open(&world).await;
    browser.go(&format!("{}#{VARIANT}", world.url())).await;
    browser.until(&format!("{DETAILS} && {DETAILS}.dataset.drawn")).await;
    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        let background = "return getComputedStyle(document.body).backgroundColor;";
        backgrounds.push(browser.js(background).await);
        let low = browser.js(&format!("{CONTRAST} return low(4.5);")).await;
        assert_eq!(low, json!([]), "{scheme}: text with too little contrast");
        browser.screenshot(&format!("{scheme}-details")).await;
    }
    assert_ne!(backgrounds[0], backgrounds[1], "the themes differ");
    // The switch wins over what the system prefers.
    browser.js("document.getElementById('theme').click();").await;
    let background = "return getComputedStyle(document.body).backgroundColor;";
    assert_eq!(browser.js(background).await, backgrounds[0]);
    for width in [400, 700, 1000] {
        browser.resize(width, 900).await;
        let widths = "return [document.scrollingElement.scrollWidth, innerWidth];";
        let widths = browser.js(widths).await;
        assert!(widths[0].as_u64() <= widths[1].as_u64(), "{width}: {widths}");
        if width == 400 {
            browser.screenshot("narrow").await;
        }
    }
    let nameless = "return [...document.querySelectorAll('button, input, select, [role=slider]')]
        .filter(it => !(it.textContent.trim() || it.getAttribute('aria-label') || it.closest('label')))
        .map(it => it.outerHTML);";
    assert_eq!(browser.js(nameless).await, json!([]));
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_gone_leaves_numbers_that_are_marked_as_old() {
    let world = World::start(0).await;
    let browser = open(&world).await;
    browser.until("document.getElementById('stale').hidden").await;
    world.daemon.shutdown().await;
    browser.until("!document.getElementById('stale').hidden").await;
    let banner = browser.js("return document.getElementById('stale').textContent;").await;
    let banner = banner.as_str().unwrap();
    assert!(banner.contains("does not answer") && banner.contains("ago"), "{banner}");
    let grey = "return getComputedStyle(document.querySelector('main')).filter;";
    assert_eq!(browser.js(grey).await, "grayscale(1)");
    let live = browser.js("return document.getElementById('live-text').textContent;").await;
    assert!(live.as_str().unwrap().starts_with("No answer"), "{live}");
    browser.screenshot("stale").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_variants_are_folded_by_model_and_found_by_name() {
    let world = World::start(1000).await;
    world.until_decided().await;
    let browser = Browser::open().await;
    browser.go(&world.url()).await;
    browser.until("document.querySelectorAll('.model').length === 103").await;
    let rows = "return document.querySelectorAll('[data-variant]').length;";
    assert_eq!(browser.js(rows).await, 0, "the list is folded");
    browser.screenshot("thousand").await;
    browser.js("document.getElementById('search').focus();").await;
    browser.press(&"idle-0427".chars().collect::<Vec<_>>()).await;
    browser.until("document.querySelectorAll('[data-variant]').length === 1").await;
    let found = browser.js("return document.getElementById('found').textContent;").await;
    assert_eq!(found, "1 of 1004 variants shown.");
    browser.js("location.hash = '#idle/idle-0999';").await;
    browser.until("document.getElementById('details-idle/idle-0999')").await;
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn need_and_capacity_are_charted_with_the_forecast_and_the_reason_of_each_decision() {
    let world = World::learned().await;
    let browser = Browser::open().await;
    browser.go(&format!("{}#demo/llama-h100", world.url())).await;
    let details = "document.getElementById('details-demo/llama-h100')";
    browser.until(&format!("{details} && {details}.querySelector('.change-list .load')")).await;
    for css in ["s-need", "s-now", "s-forecast", "s-pending", "s-most"] {
        let path = format!("{details}.querySelector('path.series.{css}:not(.beyond)')");
        browser.until(&format!("{path} && {path}.getAttribute('d').includes('L')")).await;
    }
    let area = format!("{details}.querySelector('path.area.s-capacity')");
    browser.until(&format!("{area}.getAttribute('d').includes('Z')")).await;
    browser.until(&format!("{details}.querySelector('path.series.beyond.s-forecast')")).await;

    let head = "return [...document.querySelectorAll('.gauge-text')].map(it => it.textContent);";
    let heads = browser.js(head).await;
    let mut texts = heads.as_array().unwrap().iter().filter_map(|it| it.as_str());
    let is_known = |text: &str| text.starts_with("need ") && text.contains("at the maximum");
    assert!(texts.any(is_known), "{heads}");
    let load = format!("return {details}.querySelector('.change-list .load').textContent;");
    let load = browser.js(&load).await;
    let load = load.as_str().unwrap();
    assert!(load.contains(", now ") && load.contains("requests/s"), "{load}");

    // From the plot to its marks, and from the latest mark to the one before.
    browser.js(&format!("{details}.querySelector('.stage').focus();")).await;
    browser.press(&[key::TAB]).await;
    let mark = "return document.activeElement.getAttribute('aria-label');";
    let latest = browser.js(mark).await;
    browser.press(&[key::LEFT]).await;
    let earlier = browser.js(mark).await;
    assert_ne!(latest, earlier);
    let read = format!("return {details}.querySelector('.readout').textContent;");
    assert_eq!(browser.js(&read).await, earlier, "the focus shows the reason");
    let number = browser.js("return Number(document.activeElement.dataset.number);").await;
    let told = world.ask("events?limit=1000").await;
    let mut events = told["events"].as_array().unwrap().iter();
    let event = events.find(|it| it["number"] == number).unwrap();
    let headline = event["headline"].as_str().unwrap();
    assert!(earlier.as_str().unwrap().ends_with(headline), "{earlier}: {event}");

    let problems = browser.log("browser").await;
    assert!(problems.is_empty(), "{problems:?}");
    browser.js("document.activeElement.blur(); scrollTo(0, 0);").await;
    browser.resize(1280, 1240).await;
    browser.view("status-page").await;
    browser.prefer("dark").await;
    browser.screenshot("learned-dark").await;
    browser.resize(400, 900).await;
    browser.screenshot("learned-narrow").await;
    let widths = "return [document.scrollingElement.scrollWidth, innerWidth];";
    let widths = browser.js(widths).await;
    assert!(widths[0].as_u64() <= widths[1].as_u64(), "{widths}");
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_banner_names_a_cause_with_its_start_its_runbook_and_a_command() {
    let world = World::start(2).await;
    let browser = open(&world).await;
    let item = "document.querySelector('[data-cause=undecided]')";
    browser.until(item).await;
    let texts = format!(
        "return ['.attention-title', '.attention-variants', 'code', 'time .absolute'].map(
            css => {item}.querySelector(css).textContent);"
    );
    let texts = browser.js(&texts).await;
    assert_eq!(texts[0], "No desired replicas");
    assert_eq!(texts[1], "idle/idle-0000, idle/idle-0001, other/hostile");
    assert_eq!(texts[2], "plimsoll explain idle/idle-0000");
    assert!(texts[3].as_str().unwrap().contains(':'), "a time of day with its zone: {texts}");
    let link = browser.js(&format!("return {item}.querySelector('.attention-next a').href;")).await;
    let runbook = reqwest::get(link.as_str().unwrap()).await.unwrap().text().await.unwrap();
    assert!(runbook.starts_with("# PlimsollUndecided"), "{runbook}");
    browser.screenshot("attention").await;
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filters_and_the_open_variant_survive_a_reload() {
    let world = World::start(3).await;
    let browser = open(&world).await;
    browser.js("document.getElementById('search').focus();").await;
    browser.press(&"idle-000".chars().collect::<Vec<_>>()).await;
    let choose = "const it = document.getElementById('namespace'); it.value = 'idle';
        it.dispatchEvent(new Event('input'));";
    browser.js(choose).await;
    browser.js("document.querySelector('[data-variant=\"idle/idle-0001\"] button').click();").await;
    let address = browser.js("return location.href;").await;
    let address = address.as_str().unwrap().to_owned();
    assert!(address.ends_with("?search=idle-000&namespace=idle#idle/idle-0001"), "{address}");

    browser.go("about:blank").await;
    browser.go(&address).await;
    browser.until("document.getElementById('details-idle/idle-0001')").await;
    browser.until("document.querySelectorAll('[data-variant]').length === 3").await;
    let values =
        "return ['search', 'namespace', 'show'].map(it => document.getElementById(it).value);";
    assert_eq!(browser.js(values).await, json!(["idle-000", "idle", "all"]));
    assert_eq!(browser.js("return location.href;").await, address);
    world.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_page_has_is_not_sent_again() {
    let world = World::start(0).await;
    let browser = open(&world).await;
    let mut unchanged = 0;
    while unchanged == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        for entry in browser.log("performance").await {
            let event: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            let event = &event["message"];
            let response = &event["params"]["response"];
            unchanged += usize::from(
                event["method"] == "Network.responseReceived" && response["status"] == 304,
            );
        }
    }
    browser.until(LIVE).await;
    world.daemon.shutdown().await;
}

/// Finds visible texts whose contrast with what is behind them is below a ratio, by the formula of
/// WCAG 2.2.
const CONTRAST: &str = r"
    const parse = text => {
        const parts = text.match(/[\d.]+/g).map(Number);
        const scale = text.startsWith('color(') ? 1 : 255;
        return [parts[0] / scale, parts[1] / scale, parts[2] / scale, parts[3] ?? 1];
    };
    const over = (top, below) => [0, 1, 2].map(at => top[at] * top[3] + below[at] * (1 - top[3]));
    const behind = element => {
        const layers = [];
        for (let it = element; it; it = it.parentElement) {
            layers.push(parse(getComputedStyle(it).backgroundColor));
        }
        return layers.reverse().reduce((below, top) => over(top, below), [1, 1, 1]);
    };
    const luminance = colour => {
        const [r, g, b] = colour.map(it => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const low = least => {
        const found = [];
        for (const element of document.querySelectorAll('body *')) {
            const text = [...element.childNodes].some(it => it.nodeType === 3 && it.data.trim());
            if (!text || !element.checkVisibility() || ['SCRIPT', 'STYLE', 'OPTION'].includes(element.tagName)) continue;
            const style = getComputedStyle(element);
            const below = behind(element);
            const ink = over(parse(element instanceof SVGElement ? style.fill : style.color), below);
            const [a, b] = [luminance(ink), luminance(below)].sort((x, y) => y - x);
            const ratio = (a + 0.05) / (b + 0.05);
            if (ratio < least) found.push(`${ratio.toFixed(2)} ${element.tagName}.${element.getAttribute('class')}: ${element.textContent.slice(0, 40)}`);
        }
        return found;
    };
";
