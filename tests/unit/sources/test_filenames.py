"""choose_files: which files of a listing are the model."""

from __future__ import annotations

import tracemalloc
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.calls import calls_of

from edgekit.errors import EdgekitError, HeaderError, NotFoundError
from edgekit.sources.filenames import choose_files, close_names, quant_tag, shard_names
from edgekit.sources.types import ByteSource, Container, ModelFile, ModelFiles, Origin


def _fail_to_open() -> ByteSource:
    raise AssertionError("choose_files opened a file")


def choose(
    *names: str,
    quant: str | None = None,
    filename: str | None = None,
    origin: Origin = Origin.HUB,
) -> ModelFiles:
    files = [ModelFile(name=name, open=_fail_to_open, size_bytes=1) for name in names]
    return choose_files(files, label="org/name", origin=origin, quant=quant, filename=filename)


def names(files: tuple[ModelFile, ...]) -> list[str]:
    return [file.name for file in files]


def shards(stem: str, count: int, suffix: str = "gguf", *, first: int = 1) -> list[str]:
    last = first + count
    return [f"{stem}-{number:05d}-of-{count:05d}.{suffix}" for number in range(first, last)]


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("gemma-3-27b-it-Q4_K_M.gguf", "Q4_K_M"),
        ("gemma-3-27b-it.q4_k_m.gguf", "Q4_K_M"),
        ("model_Q8_0.gguf", "Q8_0"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("m-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("gpt-oss-20b-mxfp4_moe.gguf", "MXFP4_MOE"),
        ("m-NVFP4.gguf", "NVFP4"),
        ("m-BF16.gguf", "BF16"),
        ("m.fp16.gguf", "F16"),
        ("m-f32.gguf", "F32"),
        ("ggml-model-i2_s.gguf", "I2_S"),
        ("Q4_K_M/model.gguf", "Q4_K_M"),
        ("Q4_K_M/model-Q8_0.gguf", "Q8_0"),
        ("m-Q4_K_M_imat.gguf", "Q4_K_M"),
        ("qwen3-8b.gguf", None),
        ("FQ4_K_Mx.gguf", None),
    ],
)
def test_quant_tag_of_a_file_name(name: str, tag: str | None) -> None:
    assert quant_tag(name) == tag


QUANTS = ("m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "m-f16.gguf")


@pytest.mark.parametrize(
    ("quant", "expected"),
    [
        (None, "m-Q4_K_M.gguf"),
        ("Q8_0", "m-Q8_0.gguf"),
        ("q8_0", "m-Q8_0.gguf"),
        ("Q4_K_XL", "m-UD-Q4_K_XL.gguf"),
        ("ud-q4_k_xl", "m-UD-Q4_K_XL.gguf"),
        ("fp16", "m-f16.gguf"),
        ("F16", "m-f16.gguf"),
        ("Q4_K", "m-Q4_K_M.gguf"),
    ],
)
def test_quantisation_is_chosen_in_any_spelling(quant: str | None, expected: str) -> None:
    result = choose(*QUANTS, "README.md", quant=quant)
    assert names(result.weights) == [expected]
    assert result.container is Container.GGUF
    assert result.label == f"org/name:{quant_tag(expected)}"
    assert set(result.alternatives) == {quant_tag(name) for name in QUANTS} - {quant_tag(expected)}


@pytest.mark.parametrize(
    ("listing", "expected", "noted"),
    [
        (("m-Q2_K.gguf", "m-Q8_0.gguf"), "m-Q8_0.gguf", True),
        (("m-Q6_K.gguf", "m-Q2_K.gguf"), "m-Q2_K.gguf", True),
        (("z/m-Q2_K.gguf", "m-Q6_K.gguf"), "m-Q6_K.gguf", True),
        (("m-Q6_K.gguf",), "m-Q6_K.gguf", False),
        (("m.gguf",), "m.gguf", False),
    ],
)
def test_default_quantisation_is_q4_k_m_then_q8_0_then_the_first_file(
    listing: tuple[str, ...], expected: str, *, noted: bool
) -> None:
    result = choose(*listing)
    assert names(result.weights) == [expected]
    assert bool(result.notes) is noted


def test_missing_quantisation_lists_those_available() -> None:
    with pytest.raises(NotFoundError, match="org/name has no Q5_K_S") as caught:
        choose(*QUANTS, quant="Q5_K_S")
    assert set(caught.value.candidates) == {"Q2_K", "Q4_K_M", "Q8_0", "UD-Q4_K_XL", "F16"}


def test_quantisation_of_a_repository_without_gguf_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="no GGUF files"):
        choose("config.json", "model.safetensors", quant="Q4_K_M")


def test_shards_are_one_model_in_order_of_their_numbers() -> None:
    listing = shards("Q4_K_M/m-Q4_K_M", 12) + shards("Q8_0/m-Q8_0", 20)
    result = choose(*reversed(listing))
    assert names(result.weights) == shards("Q4_K_M/m-Q4_K_M", 12)
    assert result.alternatives == ("Q8_0",)


def test_missing_shard_is_named_in_the_error() -> None:
    listing = [name for name in shards("m-Q4_K_M", 5) if "00003-of" not in name]
    with pytest.raises(NotFoundError, match=r"is missing 1 of its shards \(00003\)"):
        choose(*listing)


def test_file_that_claims_a_million_shards_takes_little_memory() -> None:
    tracemalloc.start()
    with pytest.raises(NotFoundError, match="is missing 999,998 of its shards"):
        choose("m-000001-of-999999.gguf")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # no list of a million names
    assert shard_names("m-000001-of-999999.gguf") == ["m-000001-of-999999.gguf"]


def test_projectors_are_sorted_by_how_near_their_bits_are() -> None:
    result = choose("m-Q4_K_M.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf")
    assert names(result.weights) == ["m-Q4_K_M.gguf"]
    assert names(result.projectors) == ["mmproj-Q8_0.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]
    assert result.alternatives == ()


def test_projector_in_a_sibling_folder_is_ignored() -> None:
    result = choose("a/m-Q4_K_M.gguf", "a/mmproj-F16.gguf", "b/mmproj-F16.gguf", "mmproj-F16.gguf")
    assert names(result.projectors) == ["a/mmproj-F16.gguf", "mmproj-F16.gguf"]


def test_projector_in_a_shared_folder_belongs_to_the_model_it_is_named_after() -> None:
    listing = ("gemma-4b-Q4_K_M.gguf", "qwen-vl-Q4_K_M.gguf", "mmproj-qwen_vl-F16.gguf")
    models = [choose(*listing, filename=name, origin=Origin.LOCAL) for name in listing[:2]]
    assert [names(model.projectors) for model in models] == [[], ["mmproj-qwen_vl-F16.gguf"]]


@pytest.mark.parametrize(
    "companion",
    ["imatrix.gguf", "m-imatrix.gguf", "mtp-m-Q4_K_M.gguf", "eagle3-m-Q8_0.gguf", "mmproj.gguf"],
)
def test_companions_are_not_models(companion: str) -> None:
    assert names(choose("m-Q2_K.gguf", companion).weights) == ["m-Q2_K.gguf"]


def test_file_with_imatrix_inside_its_name_is_a_model() -> None:
    assert names(choose("m-imatrix-Q2_K.gguf").weights) == ["m-imatrix-Q2_K.gguf"]


def test_folder_of_several_models_lists_them() -> None:
    with pytest.raises(NotFoundError, match="different models") as caught:
        choose("gemma-Q4_K_M.gguf", "qwen-Q8_0.gguf", origin=Origin.LOCAL)
    assert caught.value.candidates == ("gemma-Q4_K_M.gguf", "qwen-Q8_0.gguf")


def test_quantisation_that_two_models_have_lists_both() -> None:
    with pytest.raises(NotFoundError, match="different models") as caught:
        choose("m-1b-Q4_K_M.gguf", "m-4b-Q4_K_M.gguf", "m-4b-Q8_0.gguf")
    assert caught.value.candidates == ("m-1b-Q4_K_M.gguf", "m-4b-Q4_K_M.gguf")
    result = choose("m-1b-Q4_K_M.gguf", "m-4b-Q4_K_M.gguf", "m-4b-Q8_0.gguf", quant="Q8_0")
    assert names(result.weights) == ["m-4b-Q8_0.gguf"]


CONFIG_FILES = ("config.json", "tokenizer.json", "README.md")


@pytest.mark.parametrize(
    ("listing", "weights"),
    [
        (["model.safetensors"], ["model.safetensors"]),
        (shards("model", 30, "safetensors"), shards("model", 30, "safetensors")),
        # openai/gpt-oss-20b counts 0, 1, 2 "of 2"
        (
            ["model-00000-of-00002.safetensors", *shards("model", 2, "safetensors")],
            ["model-00000-of-00002.safetensors", *shards("model", 2, "safetensors")],
        ),
        (shards("model", 3, "safetensors", first=0), shards("model", 3, "safetensors", first=0)),
        (["model-00001-of-000001.safetensors"], ["model-00001-of-000001.safetensors"]),
        (["model.safetensors", "model.fp16.safetensors"], ["model.safetensors"]),
        (["model.fp16.safetensors"], ["model.fp16.safetensors"]),
        (["model.bf16.safetensors", "model.fp16.safetensors"], ["model.bf16.safetensors"]),
        (
            [*shards("model", 2, "safetensors"), "consolidated.safetensors"],
            shards("model", 2, "safetensors"),
        ),
        (["consolidated.safetensors"], ["consolidated.safetensors"]),
        (["weights.00.safetensors", "weights.01.safetensors"],) * 2,
        (["some.safetensors"], ["some.safetensors"]),
        (["model.safetensors", *shards("model", 2, "safetensors")], ["model.safetensors"]),
        (["model.safetensors", "adapter_model.safetensors"], ["model.safetensors"]),
        (["model.safetensors", "onnx/model.safetensors"], ["model.safetensors"]),
    ],
)
def test_safetensors_files_are_those_that_transformers_would_load(
    listing: list[str], weights: list[str]
) -> None:
    result = choose(*CONFIG_FILES, *listing)
    assert result.container is Container.SAFETENSORS
    assert names(result.weights) == weights
    assert result.config is not None
    assert result.label == "org/name"


def test_index_and_quantisation_settings_are_part_of_the_model() -> None:
    result = choose(
        *CONFIG_FILES,
        *shards("model", 2, "safetensors"),
        "model.safetensors.index.json",
        "hf_quant_config.json",
    )
    assert result.index is not None
    assert result.index.name == "model.safetensors.index.json"
    assert result.quantization is not None
    assert result.quantization.name == "hf_quant_config.json"


def test_safetensors_of_any_name_are_one_model_with_an_index() -> None:
    listing = ["layers-0.safetensors", "layers-1.safetensors", "other.safetensors"]
    result = choose(*CONFIG_FILES, *listing, "model.safetensors.index.json")
    assert names(result.weights) == listing


def test_safetensors_of_any_name_are_listed_without_an_index() -> None:
    with pytest.raises(NotFoundError, match="2 safetensors files and no index") as caught:
        choose("a.safetensors", "b.safetensors", "config.json")
    assert caught.value.candidates == ("a.safetensors", "b.safetensors")


@pytest.mark.parametrize(
    ("listing", "quant", "container"),
    [
        (("model.safetensors", "config.json"), None, Container.SAFETENSORS),
        (("model.safetensors", "config.json"), "Q8_0", Container.GGUF),
        (("model.safetensors",), None, Container.GGUF),
        (("config.json",), None, Container.GGUF),
        (("model-00001-of-00002.safetensors", "config.json"), None, Container.GGUF),
    ],
)
def test_complete_safetensors_are_preferred_to_gguf(
    listing: tuple[str, ...], quant: str | None, container: Container
) -> None:
    result = choose(*listing, "m-Q8_0.gguf", quant=quant)
    assert result.container is container
    assert result.alternatives == (("Q8_0",) if container is Container.SAFETENSORS else ())


def test_config_without_weights_is_a_config_container() -> None:
    result = choose(*CONFIG_FILES)
    assert result.container is Container.CONFIG
    assert result.weights == ()
    assert result.config is not None
    assert result.notes == ()


def test_pickled_weights_are_not_read_but_their_config_is() -> None:
    result = choose(*CONFIG_FILES, "pytorch_model.bin")
    assert result.container is Container.CONFIG
    assert "pytorch_model.bin was not read" in result.notes[0]


def test_partly_cached_model_is_reduced_to_its_config() -> None:
    listing = [
        *CONFIG_FILES,
        *shards("model", 5, "safetensors")[1:],
        "model.safetensors.index.json",
    ]
    result = choose(*listing, origin=Origin.HUB_CACHE)
    assert result.container is Container.CONFIG
    assert result.index is not None
    assert result.notes
    with pytest.raises(NotFoundError, match="00001"):
        choose(*listing)


@pytest.mark.parametrize(
    ("listing", "sentence"),
    [
        (("adapter_config.json", "adapter_model.safetensors"), "adapter"),
        (("adapter_config.json", "adapter_model.bin", "config.json"), "adapter"),
        (("model_index.json", "unet/config.json", "unet/x.safetensors"), "diffusion pipeline"),
        (("model_index.json", "sd_xl.safetensors"), "diffusion pipeline"),
        (("pytorch_model.bin",), "unpickling"),
    ],
)
def test_adapters_pipelines_and_pickles_are_named_in_the_error(
    listing: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(HeaderError, match=sentence):
        choose(*listing)


def test_listing_without_a_model_names_its_files() -> None:
    with pytest.raises(NotFoundError, match=r"only a\.txt, b\.txt, x/config\.json") as caught:
        choose("a.txt", "b.txt", "x/config.json")
    assert caught.value.candidates == ("x",)
    with pytest.raises(NotFoundError, match="empty"):
        choose()


@pytest.mark.parametrize(
    ("filename", "weights"),
    [
        ("m-Q8_0.gguf", ["m-Q8_0.gguf"]),
        ("M-q8_0.GGUF", ["m-Q8_0.gguf"]),
        ("BF16/b-BF16-00002-of-00002.gguf", shards("BF16/b-BF16", 2)),
        ("b-BF16-00001-of-00002.gguf", shards("BF16/b-BF16", 2)),
        ("mmproj-F16.gguf", ["mmproj-F16.gguf"]),
        ("model-00002-of-00002.safetensors", shards("model", 2, "safetensors")),
        ("model.safetensors.index.json", shards("model", 2, "safetensors")),
        ("sub/model.safetensors", ["sub/model.safetensors"]),
        ("config.json", []),
        ("sub/config.json", []),
    ],
)
def test_named_file_is_chosen_with_its_shards(filename: str, weights: list[str]) -> None:
    result = choose(
        "m-Q8_0.gguf",
        "mmproj-F16.gguf",
        *shards("BF16/b-BF16", 2),
        *shards("model", 2, "safetensors"),
        "model.safetensors.index.json",
        "config.json",
        "sub/model.safetensors",
        "sub/config.json",
        filename=filename,
    )
    assert names(result.weights) == weights
    if filename.startswith("sub/"):
        assert result.config is not None
        assert result.config.name == "sub/config.json"
    assert (result.container is Container.CONFIG) is (weights == [])


@pytest.mark.parametrize("filename", ["m-Q4_K_S.gguf", "nothing.gguf"])
def test_missing_file_suggests_the_nearest_name(filename: str) -> None:
    with pytest.raises(NotFoundError, match=f"org/name has no file {filename}") as caught:
        choose("m-Q4_K_M.gguf", "README.md", filename=filename)
    assert caught.value.candidates == ("m-Q4_K_M.gguf",)


@pytest.mark.parametrize(
    ("filename", "sentence"),
    [("README.md", "not a .gguf"), ("adapter_model.safetensors", "adapter")],
)
def test_named_file_that_is_not_a_model_is_an_error(filename: str, sentence: str) -> None:
    with pytest.raises(HeaderError, match=sentence):
        choose(filename, filename=filename)


def test_control_characters_in_names_are_not_printed() -> None:
    with pytest.raises(NotFoundError) as caught:
        choose("\x1b]0;x\x07.gguf", "a.txt")
    assert str(caught.value).isprintable()


def test_choosing_from_a_long_listing_takes_linear_time() -> None:
    """Twice as many names take about twice the calls; only the first 500 are compared."""

    def choose_missing(count: int) -> None:
        with pytest.raises(NotFoundError):
            choose(*(f"{i:05d}/m-Q8_0-{i}.gguf" for i in range(count)), quant="Q5_K_M")

    def compare_similar(count: int) -> None:
        assert len(close_names("a" * 500, (f"{i}" + "a" * 500 for i in range(count)))) == 6

    def compare_different(count: int) -> None:
        assert close_names("a" * 500, (f"{i}" for i in range(count))) == ()

    for work, count, most in (
        (choose_missing, 150, 2.5),
        (compare_similar, 100, 2.5),
        (compare_different, 500, 1.1),
    ):
        fewer, more = (calls_of(partial(work, files)) for files in (count, 2 * count))
        assert more < most * fewer


PART = st.sampled_from(
    [
        "m",
        "Q4_K_M",
        "-",
        ".",
        "/",
        "00001",
        "-of-",
        "00002",
        "mmproj",
        "model",
        "config",
        "adapter_",
    ]
)
SUFFIX = st.sampled_from([".gguf", ".safetensors", ".json", ".safetensors.index.json", ".bin", ""])
NAME = st.builds(lambda parts, end: "".join(parts) + end, st.lists(PART, max_size=6), SUFFIX)


@given(
    st.lists(NAME, max_size=8, unique=True),
    st.sampled_from([None, "Q4_K_M", "Q8_0", "("]),
    st.sampled_from([None, "m.gguf", "model.safetensors", "config.json"]),
    st.sampled_from(list(Origin)),
)
def test_any_listing_is_a_model_of_its_files_or_an_edgekit_error(
    listing: list[str], quant: str | None, filename: str | None, origin: Origin
) -> None:
    try:
        result = choose(*listing, quant=quant, filename=filename, origin=origin)
    except EdgekitError:
        return
    parts = (*result.weights, *result.projectors, result.config, result.index, result.quantization)
    assert {part.name for part in parts if part} <= set(listing)
    assert bool(result.weights) is (result.container is not Container.CONFIG)
    assert len(set(names(result.weights))) == len(result.weights)
    assert not set(names(result.projectors)) & set(names(result.weights))
