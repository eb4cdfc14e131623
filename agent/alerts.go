package agent

import (
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/agent/send"
)

// Alert is a condition that only a person can correct.
type Alert struct {
	// ID is stable: rules and scripts branch on it.
	ID string `json:"id"`
	// Message says what is wrong, Action what to do about it.
	Message string `json:"message"`
	Action  string `json:"action"`
}

func (a Alert) String() string { return a.ID + ": " + a.Message + ". " + a.Action }

// Ids of the alerts that are not faults of the sender; those have the ids of send.Faults.
const (
	alertNoCollector = "NO_COLLECTOR"
	alertOnFallback  = "ON_FALLBACK"
	alertClock       = "CLOCK_OFFSET"
	alertCertificate = "CERTIFICATE_EXPIRES"
	alertParked      = "PARKED"
	alertDead        = "DEAD_LETTERS"
	alertNearlyFull  = "QUEUE_NEARLY_FULL"
	alertRefusing    = "QUEUE_REFUSES"
	alertStale       = "OLDEST_PENDING"
)

// Thresholds of the alerts.
const (
	// unreachableAfter is how long no collector was reachable.
	unreachableAfter = time.Minute
	// onFallbackAfter is how long the fallback collectors are used. It is above twice the default of send.return_max: a region that is
	// back has its agents back by then.
	onFallbackAfter = time.Hour
	// staleAfter is the age of the oldest pending batch.
	staleAfter = 10 * time.Minute
	// clockTolerance is the difference between this clock and the collector's. Samples carry this
	// clock's time, so they appear at a time that is wrong by as much.
	clockTolerance = 10 * time.Second
	// certificateNotice is how long before its end a client certificate is an alert.
	certificateNotice = 7 * 24 * time.Hour
)

// alertIDs lists the ids of all possible alerts, so that each has a metric even while it is not
// raised.
func alertIDs() []string {
	ids := []string{alertNoCollector, alertOnFallback, alertClock, alertCertificate, alertParked, alertDead, alertNearlyFull, alertRefusing, alertStale}
	for _, f := range send.Faults() {
		ids = append(ids, string(f))
	}
	return ids
}

// faultAlerts has the message and the action for each fault of a collector.
var faultAlerts = map[send.Fault][2]string{
	send.FaultUnauthenticated: {"does not know this agent's credentials",
		"Set send.client.token (or the client certificate) to one that the collector's principals have."},
	send.FaultForbidden: {"does not let this agent's principal send for its agent id",
		"Add the agent id to the principal's agents, with the role sender, or correct agent_id."},
	send.FaultNotACollector: {"is a gRPC server that takes no batches",
		"Set send.collectors and send.fallback to gRPC addresses of ingest services."},
	send.FaultServerUntrusted: {"has a certificate that is not signed by an authority that this agent trusts",
		"Set send.client.tls.ca_file to the authority that signed the collector's certificate."},
	send.FaultServerName: {"has a certificate for another name",
		"Use a name of the certificate in send.collectors, or set send.client.tls.server_name to it."},
	send.FaultServerExpired: {"has a certificate that is not valid at this machine's time",
		"Renew the collector's certificate, or set this machine's clock."},
	send.FaultClientCertificate: {"refuses this agent's client certificate, or wants one",
		"Set send.client.tls.cert_file and key_file to a certificate that the collector's client_ca_file signed."},
	send.FaultServerIsPlaintext: {"does not speak TLS, which the settings want",
		"Turn TLS on at the collector, or set send.client.tls.enabled to false."},
	send.FaultServerIsTLS: {"wants TLS, which the settings do not have",
		"Set send.client.tls.enabled to true, and ca_file where the certificate needs it."},
}

// alerts gives the alerts that follow from a status.
func (a *Agent) alerts(s Status, now time.Time) []Alert {
	out := senderAlerts(s.Sender, now)
	add := func(when bool, id, message, action string) {
		if when {
			out = append(out, Alert{id, message, action})
		}
	}
	for _, c := range a.certificates() {
		left := c.notAfter.Sub(now)
		add(left < certificateNotice, alertCertificate, fmt.Sprintf("the client certificate %s is valid until %s", c.file, c.notAfter.UTC().Format(time.RFC3339)),
			"Put a new certificate and key in its place; no restart is needed for those of collectors.")
	}
	q := s.Queue
	add(q.Parked > 0, alertParked, fmt.Sprintf("%d batches are parked: another frame, or another queue, holds their identity", q.Parked),
		"Compare the frames (lmctl conflicts), then run lmctl agent accept-existing for each.")
	add(q.Dead > 0, alertDead, fmt.Sprintf("%d batches were rejected and are in the dead-letter folder", q.Dead),
		"Correct the reason that is listed with each, then requeue or drop it.")
	add(q.Refusing, alertRefusing, fmt.Sprintf("new samples are dropped because they can't be queued; %d records since the queue was made", q.SkippedRecords),
		"Make room on the disk, raise queue.max_bytes, or correct what keeps collectors from taking batches.")
	add(q.DiskBytes > q.MaxBytes/10*9, alertNearlyFull, "the queue is more than 90% full",
		"Correct what keeps collectors from taking batches, or raise queue.max_bytes.")
	add(q.OldestAgeSeconds > staleAfter.Seconds(), alertStale, "the oldest pending batch waits for more than "+staleAfter.String(),
		"See the collectors' last errors; a store that is away needs nothing done here.")
	return out
}

// senderAlerts gives one alert for each fault while no collector takes batches. While one does,
// the old fault of another collector is no alert: nobody has tried that one since.
func senderAlerts(s send.Status, now time.Time) []Alert {
	var out []Alert
	if d := s.DisconnectedSince; d != nil {
		with := map[send.Fault][]string{}
		for _, c := range s.Collectors {
			with[c.Fault] = append(with[c.Fault], c.Address)
		}
		for _, f := range send.Faults() {
			// One alert for a fault of several collectors: the action is the same.
			if list := with[f]; len(list) > 0 {
				out = append(out, Alert{string(f), "collector " + strings.Join(list, ", ") + " " + faultAlerts[f][0], faultAlerts[f][1]})
			}
		}
		if age := now.Sub(*d); age >= unreachableAfter {
			out = append(out, Alert{alertNoCollector, "no collector could be used for " + age.Round(time.Second).String(),
				"Check send.collectors, the network, and that a collector is ready; each one's last error is in the status."})
		}
	}
	if age := now.Sub(s.ListSince); s.List == send.Fallback && age >= onFallbackAfter {
		out = append(out, Alert{alertOnFallback, "the collectors of send.fallback have been used for " + age.Round(time.Minute).String(),
			"Correct what keeps those of send.collectors from taking batches; each one's last error is in the status. This agent goes back by itself."})
	}
	if off := s.ClockOffsetSeconds; max(off, -off) > clockTolerance.Seconds() {
		direction := "behind"
		if off < 0 {
			off, direction = -off, "ahead of"
		}
		out = append(out, Alert{alertClock, fmt.Sprintf("this machine's clock is %.0f s %s the collector's", off, direction),
			"Set the clock of the one that is wrong (NTP); samples carry this machine's time."})
	}
	return out
}
