//! A name server on loopback that says what it is told to say.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::SRV;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// What is answered to a question.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    A(Vec<Ipv4Addr>),
    Aaaa(Vec<Ipv6Addr>),
    Srv(Vec<(&'static str, u16)>),
    /// Some addresses, and a mark that there are more.
    CutShort(Vec<Ipv4Addr>),
    NoSuchName,
    ServerFailure,
    Refused,
    Silence,
}

/// A name server that runs until it is dropped.
pub(crate) struct NameServerStub {
    pub(crate) address: SocketAddr,
    answers: Arc<Mutex<BTreeMap<Name, Answer>>>,
    asked: Arc<Notify>,
    _stop: DropGuard,
}

impl NameServerStub {
    pub(crate) async fn start() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let answers: Arc<Mutex<BTreeMap<Name, Answer>>> = Arc::default();
        let asked = Arc::new(Notify::new());
        let (book, bell) = (Arc::clone(&answers), Arc::clone(&asked));
        let serve = async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let query = Message::from_vec(&buffer[..length]).unwrap();
                let answer =
                    book.lock().unwrap().get(&query.queries[0].name().to_lowercase()).cloned();
                if let Some(response) = respond(&query, answer.unwrap_or(Answer::NoSuchName)) {
                    socket.send_to(&response.to_vec().unwrap(), from).await.unwrap();
                }
                bell.notify_one();
            }
        };
        let stop = CancellationToken::new();
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(serve));
        Self { address, answers, asked, _stop: stop.drop_guard() }
    }

    /// From now on, answers this to questions about the name.
    pub(crate) fn answer(&self, name: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(Name::from_str(name).unwrap(), answer);
    }

    /// Waits until a question has come.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }
}

fn respond(query: &Message, answer: Answer) -> Option<Message> {
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_desired = true;
    response.metadata.recursion_available = true;
    response.queries.clone_from(&query.queries);
    let name = query.queries[0].name();
    let records: Vec<RData> = match answer {
        Answer::A(ips) => ips.into_iter().map(|ip| RData::A(ip.into())).collect(),
        Answer::Aaaa(ips) => ips.into_iter().map(|ip| RData::AAAA(ip.into())).collect(),
        Answer::Srv(targets) => {
            let srv = |(host, port)| SRV::new(0, 0, port, Name::from_str(host).unwrap());
            targets.into_iter().map(|target| RData::SRV(srv(target))).collect()
        }
        Answer::CutShort(ips) => {
            response.metadata.truncation = true;
            ips.into_iter().map(|ip| RData::A(ip.into())).collect()
        }
        Answer::NoSuchName => {
            response.metadata.response_code = ResponseCode::NXDomain;
            Vec::new()
        }
        Answer::ServerFailure => {
            response.metadata.response_code = ResponseCode::ServFail;
            Vec::new()
        }
        Answer::Refused => {
            response.metadata.response_code = ResponseCode::Refused;
            Vec::new()
        }
        Answer::Silence => return None,
    };
    let wanted = query.queries[0].query_type();
    let fits = |data: &RData| data.record_type() == wanted || wanted == RecordType::ANY;
    let records = records.into_iter().filter(fits);
    response.add_answers(records.map(|data| Record::from_rdata(name.clone(), 3600, data)));
    Some(response)
}
