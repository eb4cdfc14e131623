package main

import (
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

// agent sends the batches of its queue until each has an answer that ends it.
type agent struct {
	name, spool string
	queue       []*queued
}

// queued is one batch: its bytes never change between sends.
type queued struct {
	sub   accept.Submission
	tries int
	done  bool
	wait  *call
}

// call is one submission as its sender sees it.
type call struct {
	sub       accept.Submission
	batch     *queued
	from, to  int64 // logical time; to is 0 while there is no answer
	result    accept.Result
	abandoned bool // the sender went away: it sees no answer
	// what the collector has read, for I4
	sawManifest, verified bool
	local                 bool // the answer may rest on a spool
	// made: it was told that it made the manifest. decided: its answer rests on what it has found;
	// handedOver: a proof of retention has found the batch covered since.
	made, decided, handedOver bool
}

// maxTries of a batch in one schedule.
const maxTries = 4

func (w *world) maySend(a *agent) bool {
	if w.next(a) == nil {
		return false
	}
	for _, p := range w.collectors {
		if p.ready {
			return true
		}
	}
	return false
}

func (w *world) next(a *agent) *queued {
	for _, b := range a.queue {
		if !b.done && b.wait == nil && b.tries < maxTries {
			return b
		}
	}
	return nil
}

func (w *world) send(a *agent) {
	var ready []*process
	for _, p := range w.collectors {
		if p.ready {
			ready = append(ready, p)
		}
	}
	b, p := w.next(a), ready[w.ch.n(len(ready))]
	b.tries++
	c := &call{sub: b.sub, batch: b, from: w.clock}
	b.wait = c
	w.calls = append(w.calls, c)
	w.note(a.name, "sends", b.sub.SHA256.String(), "to "+p.name+": ", nil)
	w.accept(p, c)
}

// loseReply makes a sender give up waiting: the call goes on, and its answer is lost.
func (w *world) loseReply() {
	var waiting []*call
	for _, c := range w.calls {
		if c.batch != nil && c.batch.wait == c {
			waiting = append(waiting, c)
		}
	}
	if len(waiting) > 0 {
		c := waiting[w.ch.n(len(waiting))]
		c.abandoned, c.batch.wait = true, nil
		w.note("sim", "sender gives up", c.sub.SHA256.String(), "", nil)
	}
}

// answered is the moment a collector sends its answer. From here on every promise counts.
func (w *world) answered(who string, c *call, res accept.Result, err error) {
	w.clock++
	if c.batch != nil && c.batch.wait == c {
		c.batch.wait = nil
	}
	if err != nil {
		w.note(who, "answers", c.sub.SHA256.String(), "", err)
		w.checkRefusal(c, err)
		return
	}
	w.answers++
	w.note(who, "answers", c.sub.SHA256.String(), res.Outcome.String()+", holder "+res.Manifest.FrameSHA256.String()+": ", nil)
	if !c.abandoned {
		c.to, c.result = w.clock, res
		if c.batch != nil {
			c.batch.done = true
		}
	}
	w.checkAnswer(c, res)
}

// checkRefusal: an error may only say "send again", or that the boot is another's (I6).
func (w *world) checkRefusal(c *call, err error) {
	var retry *accept.RetryError
	var refused *accept.RefusedError
	switch {
	case w.faults == (faults{}) && !w.spooling && errors.As(err, &retry) && retry.Reason == accept.ReasonStoreUnavailable:
		w.violated("I6", "%s is told %v, and the store is up", c.sub.Identity, err)
	case errors.As(err, &retry) && (retry.Reason == accept.ReasonStoreUnavailable || retry.Reason == accept.ReasonContended || w.naming && retry.Reason == accept.ReasonJournalUnavailable):
	case errors.As(err, &retry) && retry.Reason == accept.ReasonStoreDenied && w.faults.denied > 0:
	case errors.As(err, &retry) && retry.Reason == accept.ReasonCorruptManifest:
		if _, ok := w.doubt[c.sub.Identity]; !ok {
			w.violated("I6", "%s is told of a corrupt manifest: %v", c.sub.Identity, err)
		}
	case errors.As(err, &refused) && refused.Reason == accept.ReasonBootIDClash:
		if c.batch != nil {
			c.batch.done = true
		}
		if w.spooling { // the spool's own claim comes first
			if !w.otherSpool(c.sub) {
				w.violated("I6", "a clash for %s, whose boot has one spool", c.sub.Identity)
			}
			return
		}
		o, ok := w.store.objects[layout.Boot(c.sub.Identity.BootOf())]
		r, perr := accept.ParseBootRecord(o.body)
		if !ok || perr != nil || r.SpoolID == c.sub.SpoolID {
			w.violated("I6", "a clash for %s that the store does not show", c.sub.Identity)
		}
	default:
		w.violated("I6", "%s is told %v", c.sub.Identity, err)
	}
}
