package main

import (
	"errors"
	"fmt"
	"runtime"

	"google.golang.org/protobuf/encoding/protowire"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// seriesPerBatch of a host, so that 500 samples are 5 and 10,000 are 100 a series.
const seriesPerBatch = 100

// batch is one frame as a request message, made beforehand.
type batch struct {
	id    identity.Batch
	sum   identity.Digest
	wire  []byte // StreamBatchesRequest{frame}
	frame []byte // a part of wire
}

// feed is the batches of one agent, in order.
type feed struct {
	boot    identity.Boot
	batches []batch
}

// feeds makes frames of distinct identities: TSBS devops hosts, the same samples in
// every batch of an agent.
func feeds(kind string, agents, each, samples int) ([]feed, error) {
	hosts := tsbs.Generate(1, agents, samples/seriesPerBatch).Hosts()
	out := make([]feed, agents)
	errs := make(chan error, agents)
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range out {
		go func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			var err error
			out[i], err = newFeed(hosts[i], identity.Boot{Agent: fmt.Sprintf("%s-%02d", kind, i), Boot: nextBoot(kind, i)}, each, samples)
			errs <- err
		}()
	}
	var all error
	for range out {
		all = errors.Join(all, <-errs)
	}
	return out, all
}

func newFeed(h tsbs.Host, boot identity.Boot, each, samples int) (feed, error) {
	f := feed{boot: boot}
	h.Series = h.Series[:seriesPerBatch]
	fb := frame.NewBuilder()
	if err := h.Fill(fb, 0, samples/seriesPerBatch); err != nil {
		return f, err
	}
	b, err := fb.Build(boot, 1)
	if err != nil {
		return f, err
	}
	enc := frame.NewEncoder(frame.Options{})
	for range each {
		next, err := encodeBatch(enc, b)
		if err != nil {
			return f, err
		}
		f.batches = append(f.batches, next)
		b.Identity.SeqStart += uint64(samples)
		b.Identity.SeqEnd += uint64(samples)
	}
	return f, nil
}

func encodeBatch(enc *frame.Encoder, b *frame.Batch) (batch, error) {
	raw, err := enc.Encode(nil, b)
	if err != nil {
		return batch{}, err
	}
	const frameField = 2 // of StreamBatchesRequest
	wire := make([]byte, 0, len(raw)+8)
	wire = protowire.AppendTag(wire, frameField, protowire.BytesType)
	wire = protowire.AppendBytes(wire, raw)
	return batch{id: b.Identity, sum: identity.Sum(raw), wire: wire, frame: wire[len(wire)-len(raw):]}, nil
}
