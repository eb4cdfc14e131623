package place

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// ErrUnfit: the store of a bucket does not keep what a place promises. It comes with ErrOut.
var ErrUnfit = errors.New("its store cannot be a place")

// UnfitError says which promise a bucket's store did not keep when it was tried.
type UnfitError struct {
	Place, Promise string
	Err            error // what it answered; nil: it answered that all is well
}

func (e *UnfitError) Error() string {
	return fmt.Sprintf("place %s: its store cannot be a place: %s: %v", e.Place, e.Promise, e.Err)
}

// Unwrap makes it ErrUnfit and ErrOut.
func (e *UnfitError) Unwrap() []error { return []error{ErrUnfit, ErrOut} }

const (
	probePrefix = "probe/"
	probeBody   = "lightmetrics place probe"
)

// qualify tries what a place promises and S3 stores differ in: that a name is taken once, by a request and by completed parts, and that
// ranges and listings begin where they should. A store that takes conditions and ignores them would lose files to racing workers without
// a word. What it does under a race shows only in one.
func (b *Bucket) qualify(ctx context.Context) error {
	key := b.prefix + probePrefix + NewID()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
		defer cancel()
		_ = b.s3.remove(ctx, key)
	}()
	for _, try := range []struct {
		promise string
		do      func() error
	}{
		{"it does not create an object on the condition that there is none", func() error { return b.s3.create(ctx, key, []byte(probeBody)) }},
		{"an object was replaced on the condition that there is none", func() error { return refusal(b.s3.create(ctx, key, []byte("another"))) }},
		{"parts replaced an object on the condition that there is none", func() error { return refusal(b.probeParts(ctx, key)) }},
		{"the end of an object is not what was written", func() error { return b.probeTail(ctx, key) }},
		{"a listing does not begin behind a key", func() error { return b.probeList(ctx, key) }},
	} {
		err := try.do()
		var answer *statusError
		// A store that cannot be asked now may be a good one.
		if err != nil && errors.Is(err, ErrOut) && !errors.As(err, &answer) {
			return b.failed("try the store", err)
		}
		if err != nil {
			return &UnfitError{b.name, try.promise, err}
		}
	}
	return nil
}

// forgetProbes removes what processes have left that ended while they tried the store. What stays is small, and is met again.
func (b *Bucket) forgetProbes(ctx context.Context) {
	page, err := b.s3.list(ctx, b.prefix+probePrefix, "", maxPage)
	if err != nil {
		return
	}
	for _, o := range page.Contents {
		if b.s3.remove(ctx, o.Key) != nil {
			return
		}
	}
}

var errTaken = errors.New("it answered that it did")

// refusal turns the answer to something that must be refused around.
func refusal(err error) error {
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err == nil:
		return errTaken
	}
	return err
}

func (b *Bucket) probeParts(ctx context.Context, key string) error {
	upload, err := b.s3.begin(ctx, key)
	if err != nil {
		return err
	}
	tag, err := b.s3.part(ctx, key, upload, 1, []byte("another"))
	if err == nil {
		err = b.s3.complete(ctx, key, upload, []string{tag})
	}
	if err != nil {
		_ = b.s3.abort(ctx, key, upload) // what is left is aborted at the next start
	}
	return err
}

func (b *Bucket) probeTail(ctx context.Context, key string) error {
	const n = 5
	got, size, err := b.s3.tail(ctx, key, n)
	if err == nil && (size != int64(len(probeBody)) || !bytes.Equal(got, []byte(probeBody[len(probeBody)-n:]))) {
		err = fmt.Errorf("%q of %d bytes", got, size)
	}
	return err
}

func (b *Bucket) probeList(ctx context.Context, key string) error {
	before, err := b.s3.list(ctx, b.prefix+probePrefix, key[:len(key)-1], maxPage)
	if err != nil {
		return err
	}
	found := false
	for _, o := range before.Contents {
		found = found || o.Key == key
	}
	behind, err := b.s3.list(ctx, b.prefix+probePrefix, key, maxPage)
	for _, o := range behind.Contents {
		found = found && o.Key > key
	}
	if err == nil && !found {
		err = errors.New("it has other keys")
	}
	return err
}
