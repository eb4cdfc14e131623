package s3api

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// chooseParts finds the parts that a request to complete names, and checks them.
func (c *call) chooseParts(id string, up engine.Object, named []completedPart) ([]engine.Part, error) {
	if err := checkOrder(named); err != nil {
		return nil, err
	}
	have, _, err := c.Engine.Parts(c.bucket, c.key, id, 0, engine.MaxParts)
	if errors.Is(err, engine.ErrNoUpload) {
		return nil, noSuchUpload(id)
	}
	if err != nil {
		return nil, err
	}
	parts := make([]engine.Part, 0, len(named))
	for i, n := range named {
		last := *n.PartNumber
		missing := s3err.InvalidPart.With("One or more of the specified parts could not be found.  The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.").Detail("UploadId", id).Detail("PartNumber", strconv.Itoa(last)).Detail("ETag", unquote(*n.ETag))
		at, ok := slices.BinarySearchFunc(have, last, func(p engine.Part, n int) int { return p.Number - n })
		if !ok {
			return nil, missing
		}
		p := have[at]
		if i < len(named)-1 && p.Size < c.LeastPart {
			return nil, s3err.EntityTooSmall.Detail("ProposedSize", strconv.FormatInt(p.Size, 10)).Detail("MinSizeAllowed", strconv.FormatInt(c.LeastPart, 10))
		}
		if unquote(*n.ETag) != p.ETag {
			return nil, missing
		}
		if err := n.checkSum(up.Checksum, p, missing); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// checkOrder checks what needs no look at the parts.
func checkOrder(named []completedPart) error {
	last := 0
	for _, n := range named {
		switch {
		case n.PartNumber == nil || n.ETag == nil:
			return s3err.MalformedXML
		case *n.PartNumber < 1:
			return s3err.Argument("PartNumber", strconv.Itoa(*n.PartNumber), "PartNumber must be >= 1")
		case *n.PartNumber <= last:
			return s3err.InvalidPartOrder
		}
		last = *n.PartNumber
	}
	return nil
}

// checkSum compares the checksum that a request to complete gives for a part.
func (n *completedPart) checkSum(want engine.Checksum, p engine.Part, missing error) error {
	algorithm, value := "", ""
	for _, a := range checksum.Algorithms {
		switch given := *n.field(a); {
		case given == "":
		case algorithm != "" || !checksum.Valid(a, given):
			return s3err.Argument("Checksum", given, "Invalid Base64 or multiple checksums present in request")
		default:
			algorithm, value = a, given
		}
	}
	have := p.Checksum
	if algorithm == checksum.Default && p.CRC64 != nil {
		have = defaultSum(p.CRC64)
	}
	switch {
	case algorithm == "" && want.Type == composite:
		return s3err.InvalidRequest.With("The upload was created using a %s checksum. The complete request must include the checksum for each part. It was missing for part %d in the request.", strings.ToLower(want.Algorithm), p.Number)
	case algorithm == "", algorithm == have.Algorithm && value == have.Value:
		return nil
	case algorithm == have.Algorithm || have.Algorithm == "":
		return missing
	}
	return s3err.BadDigest.With("The %s you specified for part %d did not match what we received.", strings.ToLower(algorithm), p.Number)
}

// sumUp gives an object the size, the ETag and the checksum that its parts make.
func (c *call) sumUp(o *engine.Object, parts []engine.Part, whole engine.Checksum) error {
	tag := md5.New()
	o.Size = 0
	for _, p := range parts {
		raw, err := hex.DecodeString(p.ETag)
		if err != nil {
			return fmt.Errorf("part %d of %q has the ETag %q", p.Number, o.Key, p.ETag)
		}
		tag.Write(raw)
		o.Size += p.Size
	}
	o.ETag = partsETag(tag.Sum(nil), len(parts))
	if text := c.r.Header.Get("X-Amz-Mp-Object-Size"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case err != nil:
			return s3err.InvalidRequest.With("Value for x-amz-mp-object-size header is invalid: '%s'", text)
		case n < 0:
			return s3err.InvalidRequest.With("Value for x-amz-mp-object-size header is less than zero: '%d'", n)
		case n != o.Size:
			return s3err.InvalidRequest.With("The provided 'x-amz-mp-object-size' header value %d does not match what was computed: %d", o.Size, n)
		}
	}
	if o.Checksum.Algorithm == "" && useDefault(parts) {
		o.Checksum = engine.Checksum{Algorithm: checksum.Default, Type: fullObject}
	}
	a := o.Checksum.Algorithm
	if whole.Algorithm != "" && whole.Algorithm != a {
		// It cannot be computed from the parts. Ignoring it would say that the object has it.
		return s3err.InvalidRequest.With("Checksum Type mismatch occurred, expected checksum Type: %s, actual checksum Type: %s", orNull(a), whole.Algorithm)
	}
	if a == "" {
		return nil
	}
	sum, err := combine(o.Checksum, parts)
	if err != nil {
		return err
	}
	o.Checksum.Value = sum
	if whole.Algorithm != "" && whole.Value != sum {
		plain, _, _ := strings.Cut(sum, "-")
		if whole.Value != plain {
			return s3err.BadDigest.With("The %s you specified did not match the calculated checksum.", a)
		}
	}
	return nil
}

// partsETag gives the ETag of an object of parts, of the MD5 of theirs.
func partsETag(sum []byte, parts int) string { return fmt.Sprintf("%x-%d", sum, parts) }

// useDefault makes the default checksum that of the parts, beside which they may have others. Parts of an earlier release
// lack it, and with them the object does.
func useDefault(parts []engine.Part) bool {
	for i := range parts {
		switch p := &parts[i]; {
		case p.Checksum.Algorithm == checksum.Default:
		case p.CRC64 == nil:
			return false
		default:
			p.Checksum = defaultSum(p.CRC64)
		}
	}
	return true
}

// combine makes the checksum of the whole of those of the parts.
func combine(c engine.Checksum, parts []engine.Part) (string, error) {
	var all []byte
	for i, p := range parts {
		raw, err := base64.StdEncoding.DecodeString(p.Checksum.Value)
		if err != nil || p.Checksum.Algorithm != c.Algorithm {
			return "", s3err.InvalidRequest.With("Part %d has no %s checksum.", p.Number, c.Algorithm)
		}
		switch {
		case c.Type == composite || i == 0:
			all = append(all, raw...)
		default:
			all = checksum.Combine(c.Algorithm, all, raw, p.Size)
		}
	}
	if c.Type != composite {
		return base64.StdEncoding.EncodeToString(all), nil
	}
	h := checksum.New(c.Algorithm)
	h.Write(all)
	return fmt.Sprintf("%s-%d", base64.StdEncoding.EncodeToString(h.Sum(nil)), len(parts)), nil
}
