//! Faults of files that are read while the daemon runs: the configuration and certificates.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, ensure};
use tokio::time::sleep;

use super::{Script, script};
use crate::external_metrics_harness::{Authority, Use, Validity};
use crate::scene::{FAULT, Finding, Scene, Setting};

pub(crate) fn all() -> Vec<Script> {
    vec![
        script!("configuration-broken", broken(&BROKEN)),
        script!("configuration-of-16-mib", broken(&[large])),
        script!("configuration-alias-bomb", broken(&[|_| aliases().into_bytes()])),
        script!("configuration-deleted", deleted()),
        script!("certificate-broken", certificate(Broken::Garbage)),
        script!("certificate-expired", certificate(Broken::Expired)),
        script!("certificate-deleted", certificate(Broken::Deleted)),
    ]
}

/// A change of the text of a file.
type Change = fn(&[u8]) -> Vec<u8>;

/// Contents of a file that are no configuration.
const BROKEN: [Change; 5] = [
    |_| b"variants: [".to_vec(),
    |text| edit(text, "\"cost\"", "\"costs\""),
    |_| Vec::new(),
    |text| text[..text.len() / 2].to_vec(),
    |_| vec![0xff; 4096],
];

fn edit(text: &[u8], from: &str, to: &str) -> Vec<u8> {
    String::from_utf8_lossy(text).replace(from, to).into_bytes()
}

fn large(text: &[u8]) -> Vec<u8> {
    [text, "# padding\n".repeat(1_700_000).as_bytes()].concat()
}

/// A billion strings from nine anchors.
fn aliases() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = format!("*a{}", level - 1);
        let list = vec![before; 10].join(", ");
        let _infallible = writeln!(text, "a{level}: &a{level} [{list}]");
    }
    text
}

/// The file becomes unreadable while the daemon runs: it is refused whole.
async fn broken(changes: &[Change]) -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let file = scene.config();
    let sound = fs::read(&file)?;
    let mut statuses = Vec::new();
    for change in changes {
        fs::write(&file, change(&sound))?;
        let status = scene.reload().await?;
        ensure!(status >= 400, "a broken configuration is taken up: {status}");
        statuses.push(status.to_string());
        sleep(FAULT / 2 / u32::try_from(changes.len())?).await;
    }
    fs::write(&file, &sound)?;
    let mended = scene.reload().await?;
    ensure!(mended < 300, "the sound configuration is refused: {mended}");
    let recovery = scene.recover().await?;
    Ok(scene.finish(format!("refused with {}", statuses.join(", ")), Some(recovery)))
}

async fn deleted() -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let file = scene.config();
    let sound = fs::read(&file)?;
    fs::remove_file(&file)?;
    let status = scene.reload().await?;
    ensure!(status >= 400, "a missing configuration is taken up: {status}");
    sleep(FAULT / 2).await;
    fs::write(&file, &sound)?;
    let recovery = scene.recover().await?;
    Ok(scene.finish(format!("refused with {status}"), Some(recovery)))
}

/// A way in which the serving certificate's files are wrong.
#[derive(Clone, Copy)]
enum Broken {
    Garbage,
    Expired,
    Deleted,
}

/// The files of the serving certificate become useless: the earlier certificate is served on.
async fn certificate(broken: Broken) -> Result<Finding> {
    let scene = Scene::start(&Setting::default()).await?;
    let folder = scene.config().parent().expect("a folder").to_owned();
    let (cert_file, key_file) = (folder.join("tls.crt"), folder.join("tls.key"));
    let sound = (fs::read(&cert_file)?, fs::read(&key_file)?);
    let serving: &Authority = &scene.credentials.serving;
    match broken {
        Broken::Garbage => fs::write(&cert_file, "no certificate")?,
        Broken::Expired => {
            let leaf = serving.issue("plimsoll", Use::Server, Validity::Past);
            fs::write(&cert_file, leaf.chain_pem)?;
            fs::write(&key_file, leaf.key_pem)?;
        }
        Broken::Deleted => {
            fs::remove_file(&cert_file)?;
            fs::remove_file(&key_file)?;
        }
    }

    // A client that connects anew must still be answered with the certificate of before.
    let failures =
        scene.until_sample(0, "plimsoll_tls_reload_failures_total", |it| it >= 1.0).await;
    scene.introduce(0)?;
    sleep(FAULT / 2).await;
    fs::write(&cert_file, &sound.0)?;
    fs::write(&key_file, &sound.1)?;
    let recovery = scene.recover().await?;
    failures?;
    Ok(scene.finish("counted; the earlier certificate is served", Some(recovery)))
}
